"""What a plugin's metric must be."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tune_speed.components.metrics import Metric


def metric_mistakes(value: Any) -> Iterator[str]:
    """Yields what a metric must be and is not."""
    if not isinstance(value, Metric):
        yield f"must be a tune_speed.components.metrics.Metric, but is a {type(value).__name__}"
        return
    for field in ("about", "unit", "source"):
        text = getattr(value, field)
        if not isinstance(text, str) or not text.strip():
            yield f"must have a text as `{field}`"
    if value.of_run is not None and not _takes(value.of_run, 1):
        yield "must have None as `of_run`, or a function of one argument, a RunResult"
    if value.of_logits is not None and not _takes(value.of_logits, 2):
        yield "must have None as `of_logits`, or a function of two arguments, logits and labels"


def _takes(function: Callable[..., Any], num_arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except (TypeError, ValueError):
        return False
    return True
