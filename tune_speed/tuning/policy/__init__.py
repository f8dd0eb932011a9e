"""The search policy, pure: no Ray, no clock, no randomness but a seed; `base` has the interface."""
