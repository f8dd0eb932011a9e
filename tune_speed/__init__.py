"""Find the training configuration that reaches a target accuracy soonest, and prove it.

```python
import tune_speed

study = tune_speed.search("digits_quickstart", trials=10)
```

`search`, `train`, `predict`, `certify` and `ablate` do what the commands of these names do; see
`tune_speed.api`.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names
from tune_speed.core.version import __version__

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.api.calls import Steering, ablate, search, steer, train
    from tune_speed.api.certified import Certified
    from tune_speed.api.predicted import Predicted, predict
    from tune_speed.api.results import Results
    from tune_speed.api.study import Study, certify
    from tune_speed.api.trained import Compared, Trained

__all__ = [
    "Ablated", "Certified", "Compared", "Predicted", "Results", "Steering", "Study", "Trained",
    "__version__", "ablate", "certify", "predict", "search", "steer", "train",
]  # fmt: skip

# Lazily, as most need pandas or torch.
__getattr__ = lazy_names(
    __name__,
    {
        "api.calls": ("Steering", "ablate", "search", "steer", "train"),
        "api.ablated": ("Ablated",),
        "api.certified": ("Certified",),
        "api.predicted": ("Predicted", "predict"),
        "api.results": ("Results",),
        "api.study": ("Study", "certify"),
        "api.trained": ("Compared", "Trained"),
    },
)


def __dir__() -> list[str]:
    """Returns the public names too, for completion."""
    return sorted({*globals(), *__all__})
