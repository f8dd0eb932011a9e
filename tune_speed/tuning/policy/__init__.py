"""The search policy: which configuration to try next, and when to stop a trial.

Pure: no Ray, no clock, no randomness but a seed, so a search and a simulation run the same object
and a ledger restores it. `base` is the interface of every policy. `TimeToTarget` is ours: a
Gaussian process over censored learning curves, an acquisition function with costs, and a pruner.
"""
