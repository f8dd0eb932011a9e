"""The calls of `import tune_speed`, which the command line makes too, and what they return."""
