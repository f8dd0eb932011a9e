"""Searches in virtual time: the policies of real searches over recorded or synthetic curves.

`simulate` runs one search in seconds; `run_searches` runs policies on benchmarks over many seeds,
`score` and `overall` compare them with the baseline. Benchmarks are `Synthetic` or, from Parquet
tables of real trainings, `RecordedBenchmark`.
"""
