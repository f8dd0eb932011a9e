"""The language of `--where`: fields, syntax, and filters over records."""
