"""The policy in other people's tools: behind `tune_speed.optuna` and `tune_speed.ray`."""
