"""Pages of one file. Names may be hostile: templates escape all, no script runs but ours."""
