"""A running search on the screen."""
