"""A user's own entries: found, checked, hashed and shipped."""
