"""The command line: each command parses, calls `tune_speed.api` and prints; libraries load late."""
