"""`tune-speed serve`: the report's page while it changes, and the rest of a store, in a browser.

`run.serve` listens, `guard` says who may read, `app` has the addresses. A `channel.Channel` reads
its source once for all viewers. What a page asks of a running search goes to its `helm`.
"""
