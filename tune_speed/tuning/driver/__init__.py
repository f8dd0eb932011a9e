"""Between policy and trials: what a search decides, in an order that loses nothing.

`SearchController` is the event loop's one object, without Ray. It writes every event to the
`Ledger` first, predicts costs (`CostModel`), retries trials whose processes died, and takes over
what trials of other studies can teach (`carry_over`).
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "CostModel": "cost_model",
    "Ledger": "ledger",
    "Machine": "prior_trials",
    "Observer": "controller",
    "SearchController": "controller",
    "carry_over": "prior_trials",
    "outcome_of": "prior_trials",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Returns a public name of the room. Its module is imported only when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
