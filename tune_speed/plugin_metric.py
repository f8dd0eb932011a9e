"""What a plugin's metric must be."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tune_speed.metrics import Metric


def metric_mistakes(value: Any) -> Iterator[str]:
    """Yields what a metric must be and is not."""
    if not isinstance(value, Metric):
        yield f"must be a tune_speed.metrics.Metric, but is a {type(value).__name__}"
        return
    for field in ("about", "unit", "source"):
        text = getattr(value, field)
        if not isinstance(text, str) or not text.strip():
            yield f"must have a text as `{field}`"
    if value.of_run is not None and not _takes_a_run(value.of_run):
        yield "must have None as `of_run`, or a function of one argument, a RunResult"


def _takes_a_run(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True
