"""Find the training configuration that reaches a target accuracy soonest, and prove it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.results import Results

__all__ = ["Results", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports `Results` once it is asked for: it needs pandas, which no trial should wait for."""
    if name != "Results":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tune_speed.results import Results

    return Results
