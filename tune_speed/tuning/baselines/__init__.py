"""Baseline policies, to compare ours with: plain Optuna samplers, and Ray Tune as documented.

`Plain` minimises the time to target with a flat penalty for a miss; `ray_tune.Vanilla` is Ray's
own `OptunaSearch` and ASHA. `tuning.policies` makes each by its name.
"""
