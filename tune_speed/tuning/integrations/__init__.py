"""The search's policy in other people's tools: an Optuna sampler and pruner, a Ray Tune searcher.

Faces: `tune_speed.optuna` and `tune_speed.ray`.
"""
