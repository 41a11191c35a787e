"""The commands, one module each, so that a run imports the one that it needs."""
