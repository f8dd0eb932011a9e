"""Which parameters matter, from the trials of a study: `importance` answers three questions."""
