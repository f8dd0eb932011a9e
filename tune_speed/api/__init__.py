"""The calls of `import tune_speed`, and what they return."""
