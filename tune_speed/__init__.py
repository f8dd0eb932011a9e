"""Find the training configuration that reaches a target accuracy soonest, and prove it.

```python
import tune_speed

study = tune_speed.search("digits_quickstart", trials=10)
```

`search`, `train`, `certify` and `ablate` do what the commands of these names do; see
`tune_speed.api`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tune_speed.version import __version__

if TYPE_CHECKING:
    from tune_speed.ablate_outcome import Ablated
    from tune_speed.api import ablate, certify, search, train
    from tune_speed.certify_outcome import Certified
    from tune_speed.duel_outcome import Compared
    from tune_speed.results import Results
    from tune_speed.search_outcome import Study
    from tune_speed.train_outcome import Trained

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

_CLASSES = {
    "Ablated": "tune_speed.ablate_outcome",
    "Certified": "tune_speed.certify_outcome",
    "Compared": "tune_speed.duel_outcome",
    "Results": "tune_speed.results",
    "Study": "tune_speed.search_outcome",
    "Trained": "tune_speed.train_outcome",
}
"""Where each is; they need pandas or torch, which no `import tune_speed` should wait for."""
_CALLS = ("ablate", "certify", "search", "train")


def __getattr__(name: str) -> Any:
    """Imports what is exported once it is asked for."""
    from importlib import import_module

    if name in _CLASSES:
        return getattr(import_module(_CLASSES[name]), name)
    if name in _CALLS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns what is exported too, for completion."""
    return sorted({*globals(), *__all__})


class _Module(ModuleType):
    """A module that is pickled by its name, as plain ones are by cloudpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        from importlib import import_module

        return import_module, (self.__name__,)


class _Callable(_Module):
    """A module that may be called as the function of `tune_speed.api` that has its name.

    The commands' names are those of modules, which Python makes attributes of the package as soon
    as they are imported: a function of the same name would be lost then.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(_function(self))


def _function(module: ModuleType) -> Any:
    from tune_speed import api

    return getattr(api, module.__name__.rpartition(".")[2])


def _doc(module: ModuleType) -> str:
    """Returns what `help` and a notebook's `?` show first."""
    from inspect import getdoc

    return f"{getdoc(_function(module))}\n\nThe module:\n{vars(module)['__doc__']}"


_Callable.__doc__ = property(_doc)  # type: ignore[assignment]


class _Package(_Module):
    """This package, which makes those modules callable as Python adds them to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLS and isinstance(value, ModuleType):
            value.__class__ = _Callable
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
