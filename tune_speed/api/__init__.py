"""The calls of `import tune_speed`, and what they return.

`search`, `train`, `certify` and `ablate` have the commands' options; the command line calls them
and prints the objects that they return, each of which shows itself as text, as HTML and as JSON.
`Results` reads what is stored as pandas frames.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.api.calls import ablate, certify, search, train
    from tune_speed.api.certified import Certified
    from tune_speed.api.compared import Compared
    from tune_speed.api.results import Results
    from tune_speed.api.study import Study
    from tune_speed.api.trained import Trained

__all__ = [
    "Ablated",
    "Certified",
    "Compared",
    "Results",
    "Study",
    "Trained",
    "ablate",
    "certify",
    "search",
    "train",
]

# The calls' module is not found by its name as the objects' are: `calls` holds all four.
_CALLS = ("ablate", "certify", "search", "train")


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: the objects need pandas or torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "calls" if name in _CALLS else name.lower()
    return getattr(import_module(f"{__name__}.{module}"), name)
