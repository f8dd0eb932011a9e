"""One search, from its checks to its results: policy, driver, Ray, and a simulation of them.

`search` runs a study with Ray Tune and MLflow. The policy (`policy/`) decides what to try and what
to stop, without Ray or a clock; `driver/` has its ledger and controller, `ray/` runs the trials,
`baselines/` are policies to compare with, and `simulation/` replays searches in virtual time. Ray
and Optuna are imported in this package alone, and only by the modules that need them.
"""
