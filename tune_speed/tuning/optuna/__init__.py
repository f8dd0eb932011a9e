"""All that is Optuna's: a search's study, and the policy behind `tune_speed.optuna` and `.ray`."""
