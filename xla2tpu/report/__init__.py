"""The forms of a report, one module each: a pure function from a run to a text."""
