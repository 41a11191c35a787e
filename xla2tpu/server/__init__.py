"""The language server: the engine for editors. Nothing here is imported by the command line."""
