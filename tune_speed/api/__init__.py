"""The calls of `import tune_speed`, and what they return.

`search`, `train`, `certify` and `ablate` have the commands' options; the command line calls them
and prints the objects that they return, each of which shows itself as text, as HTML and as JSON.
`Results` reads what is stored as pandas frames.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

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

# Lazily, as the objects need pandas or torch.
__getattr__ = lazy_names(
    __name__,
    {
        "calls": ("ablate", "certify", "search", "train"),
        "ablated": ("Ablated",),
        "certified": ("Certified",),
        "compared": ("Compared",),
        "results": ("Results",),
        "study": ("Study",),
        "trained": ("Trained",),
    },
)
