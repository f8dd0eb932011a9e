"""`tune-speed serve`: the report's page while it changes, and the rest of a store, in a browser.

`run.serve` listens, `guard` says who may read, `app` has the addresses. A `channel.Channel` reads
its source once for all viewers: `live_study` one study, `overview` the store. Nothing is written;
what a page asks of a running search goes to what steers it (`helm`).
"""
