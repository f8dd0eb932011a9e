"""A study as pages, figures and importances read it."""
