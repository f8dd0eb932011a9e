"""Between policy and trials: what a search decides, without Ray, in an order that loses nothing.

`SearchController` decides, `Trials` run and end, `Learning` predicts; all is in the `Ledger` first.
"""
