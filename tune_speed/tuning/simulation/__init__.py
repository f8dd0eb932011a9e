"""Searches in virtual time: the policies of real searches over recorded or synthetic curves.

`simulate` runs one search in seconds; `run_searches` runs policies on benchmarks over many seeds,
`score` and `overall` compare them with the baseline. Benchmarks are `Synthetic` or, from Parquet
tables of real trainings, `RecordedBenchmark`.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Benchmark": "simulate",
    "RecordedBenchmark": "recorded",
    "Search": "comparison",
    "Synthetic": "synthetic",
    "Terms": "comparison",
    "Trace": "simulate",
    "overall": "scores",
    "run_policy": "simulate",
    "run_searches": "comparison",
    "score": "scores",
    "write_table": "recorded",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Returns a public name of the room. Its module is imported only when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
