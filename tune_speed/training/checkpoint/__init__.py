"""A run's state on disk, and the run that continues from it exactly."""
