"""The study file: YAML with lines, search space, overrides, validation, schema."""
