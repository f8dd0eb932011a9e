"""One training on several devices."""
