"""Searches in virtual time: the policies of real searches over recorded or synthetic curves.

`simulate` runs one search in seconds; `run_searches` runs policies on benchmarks over many seeds,
`score` and `overall` compare them with the baseline. Benchmarks are `Synthetic` or, from Parquet
tables of real trainings, `RecordedBenchmark`.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "simulate": ("Benchmark", "Trace", "run_policy"),
    "recorded": ("RecordedBenchmark", "write_table"),
    "comparison": ("Search", "Terms", "run_searches"),
    "synthetic": ("Synthetic",),
    "scores": ("overall", "score"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
