"""A package, so that its folder `datasets` does not pass for the library of that name."""
