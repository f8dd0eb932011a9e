"""Which parameters matter, from the trials of a study."""
