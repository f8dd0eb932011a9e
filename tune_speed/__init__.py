"""Find the training configuration that reaches a target accuracy soonest, and prove it.

```python
import tune_speed

study = tune_speed.search("digits_quickstart", trials=10)
```

`search`, `train`, `certify` and `ablate` do what the commands of these names do; see
`tune_speed.api`.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names
from tune_speed.core.version import __version__

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.api.calls import ablate, certify, search, steer, train
    from tune_speed.api.certified import Certified
    from tune_speed.api.compared import Compared
    from tune_speed.api.results import Results
    from tune_speed.api.steering import Steering
    from tune_speed.api.study import Study
    from tune_speed.api.trained import Trained

__all__ = [
    "Ablated",
    "Certified",
    "Compared",
    "Results",
    "Steering",
    "Study",
    "Trained",
    "__version__",
    "ablate",
    "certify",
    "search",
    "steer",
    "train",
]


# Lazily, as most need pandas or torch.
__getattr__ = lazy_names(
    __name__,
    {
        "api.calls": ("ablate", "certify", "search", "steer", "train"),
        **{f"api.{name.lower()}": (name,) for name in __all__ if name.istitle()},
    },
)


def __dir__() -> list[str]:
    """Returns the public names too, for completion."""
    return sorted({*globals(), *__all__})
