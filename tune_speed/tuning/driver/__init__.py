"""Between policy and trials: what a search decides, in an order that loses nothing.

`SearchController` is the event loop's one object, without Ray. It writes every event to the
`Ledger` first, predicts costs (`CostModel`), retries trials whose processes died, and takes over
what trials of other studies can teach (`carry_over`).
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "cost_model": ("CostModel",),
    "ledger": ("Ledger",),
    "prior_trials": ("Machine", "carry_over", "outcome_of"),
    "controller": ("Observer", "SearchController"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
