"""Between policy and trials: what a search decides, in an order that loses nothing.

`SearchController` is the event loop's one object, without Ray. It writes every event to the
`Ledger` first, predicts costs (`CostModel`), retries trials whose processes died, and takes over
what trials of other studies can teach (`carry_over`).
"""
