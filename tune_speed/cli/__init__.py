"""The command line: a file a command parses, calls `tune_speed.api` and prints."""
