"""What there is to choose from, for `tune-speed list`."""
