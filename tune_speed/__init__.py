"""Find the training configuration that reaches a target accuracy soonest, and prove it."""

__version__ = "0.1.0"
