"""The study file: YAML whose values know their lines, overrides, checks, the search space."""
