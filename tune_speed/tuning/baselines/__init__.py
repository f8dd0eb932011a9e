"""Policies to compare ours with: a plain Optuna sampler, and Ray Tune as documented."""
