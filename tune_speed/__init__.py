"""Find the training configuration that reaches a target accuracy soonest, and prove it.

```python
import tune_speed

study = tune_speed.search("digits_quickstart", trials=10)
```

`search`, `train`, `certify` and `ablate` do what the commands of these names do; see
`tune_speed.api`.
"""

from typing import TYPE_CHECKING, Any

from tune_speed.core.version import __version__

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
    "__version__",
    "ablate",
    "certify",
    "search",
    "train",
]

# They need pandas or torch, which no `import tune_speed` should wait for.
_MODULES = {
    "Ablated": "ablated",
    "Certified": "certified",
    "Compared": "compared",
    "Results": "results",
    "Study": "study",
    "Trained": "trained",
    "ablate": "calls",
    "certify": "calls",
    "search": "calls",
    "train": "calls",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.api.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Returns the public names too, for completion."""
    return sorted({*globals(), *__all__})
