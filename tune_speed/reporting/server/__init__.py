"""`tune-speed serve`: the report's page while it changes, and the rest of a store, in a browser."""
