"""The calls behind `tune-speed simulate`: benchmarks by name, searches on them, saved tables."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.renamed import LEFT, LEFT_MUST
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import POLICY_NAMES
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.simulation.comparison import Search, Terms, full_run_s
from tune_speed.tuning.simulation.recorded import RecordedBenchmark, write_table
from tune_speed.tuning.simulation.scores import overall, score
from tune_speed.tuning.simulation.simulate import Benchmark, Trace, new_policy
from tune_speed.tuning.simulation.study_table import StudyTable, table_from_records
from tune_speed.tuning.simulation.synthetic import NOISY, Synthetic, Zoo

# Benchmarks that need no file; a `%` after the number is allowed.
SYNTHETIC: dict[str, Synthetic] = {
    f"synthetic-{share:.0%}-{mode}".replace("%", ""): Synthetic(share, mode)
    for mode in ("fixed_length", "anytime")
    for share in (0.01, 0.04, 0.15)
}

NAMED: Mapping[str, Benchmark] = {**SYNTHETIC, **NOISY, "zoo-fixed_length": Zoo(0.01)}


class Demonstration(NamedTuple):
    """One simulated search."""

    policy: str
    benchmark: Benchmark
    terms: Terms
    full_run_s: float
    seed: int
    trace: Trace


def find_benchmark(name: str) -> Benchmark:
    """Returns a built-in benchmark by its name, or that of a Parquet file.

    Raises: ConfigError if there is no such one, or the file is no table of recorded runs.
    """
    plain = name.replace("%", "")
    if plain in NAMED:
        return NAMED[plain]
    if name.endswith(".parquet") or Path(name).is_file():
        return RecordedBenchmark.load(name)
    raise ConfigError(
        f"--benchmark must be a .parquet file or one of {', '.join(NAMED)}, but got"
        f" {name!r}{did_you_mean(name, NAMED) or '.'}"
    )


def find_benchmarks(names: Iterable[str]) -> list[Benchmark]:
    """Returns benchmarks of different names. Raises: ConfigError, as `find_benchmark`."""
    found: dict[str, Benchmark] = {}
    for name in names:
        benchmark = find_benchmark(name)
        if benchmark.name in found:
            raise ConfigError(
                f"--benchmark must name different benchmarks, but {name!r} is a second one called"
                f" {benchmark.name!r}. Leave one out."
            )
        found[benchmark.name] = benchmark
    return list(found.values())


def check_policies(names: Iterable[str]) -> list[str]:
    """Returns the names, repeated ones once. Raises: ConfigError if there is no such policy."""
    checked = list(dict.fromkeys(names))
    for name in checked:
        if left := next((each for each in LEFT if each.value == name), None):
            raise ConfigError(f"--policy {name} {LEFT_MUST}. {left.instead}")
        if name not in POLICY_NAMES:
            near = did_you_mean(name, POLICY_NAMES) or "."
            raise ConfigError(
                f"--policy must be one of {', '.join(POLICY_NAMES)}, but got {name!r}{near}"
            )
    return checked


def demonstrate(policy: str, benchmark: Benchmark, *, terms: Terms, seed: int = 0) -> Demonstration:
    hush_optuna()
    longest_s = full_run_s(benchmark)
    trace = terms.run(new_policy(policy, benchmark, seed), benchmark, longest_s)
    return Demonstration(policy, benchmark, terms, longest_s, seed, trace)


def comparison_dict(searches: Sequence[Search], budgets: Sequence[float]) -> dict[str, Any]:
    return {
        "budgets": list(budgets),
        "scores": [asdict(one) for one in score(searches, budgets)],
        "overall": [asdict(one) for one in overall(searches, budgets)],
        "searches": [asdict(search) for search in searches],
    }


def demonstration_dict(shown: Demonstration) -> dict[str, Any]:
    return {
        "policy": shown.policy,
        "benchmark": shown.benchmark.name,
        "target": shown.benchmark.target,
        "mode": shown.benchmark.mode,
        "seed": shown.seed,
        "terms": asdict(shown.terms),
        "full_run_s": shown.full_run_s,
        **vars(shown.trace),
        "incumbents": [incumbent._asdict() for incumbent in shown.trace.incumbents],
        "trials": [trial._asdict() for trial in shown.trace.trials],
    }


def save_study(study: str, path: Path, *, on_trial: Callable[[int, int], None]) -> StudyTable:
    """Writes a table of recorded runs from a study in MLflow, and returns it.

    The space is that of the study's file in the studies folder; where there is none, or it has
    another space than the trials, it is what the trials span. `on_trial` gets, for each trial that
    was read, how many were and of how many.

    Raises: ConfigError if the study has too few trials that can be replayed; ServiceError if MLflow
        does not answer or has no such study; StorageError if the file cannot be written.
    """
    from tune_speed.tracking.reader.queries import find_trial, find_trials
    from tune_speed.tracking.store.uri import tracking_uri

    uri = tracking_uri()
    found = find_trials(uri, study=study)
    records = []
    for number, trial in enumerate(found, start=1):
        whole = find_trial(uri, trial.run_id)
        records.append(whole.record if whole.has_curve else trial.record)
        on_trial(number, len(found))
    records.sort(key=lambda record: record.trial_id)
    space = _space_of(study, hashes={record.space_hash for record in records})
    command = shlex.join(["tune-speed", "simulate", "--from-study", study, "--out", path.name])
    table = table_from_records(records, space=space, command=command)
    write_table(path, table.rows, table.metadata)
    return table


def _space_of(study: str, *, hashes: set[str]) -> SearchSpace | None:
    """Returns the space of the study's file if all its trials were searched in it."""
    from tune_speed.core.folders import studies_folder
    from tune_speed.study.yaml import read_yaml

    file = studies_folder() / study / "study.yaml"
    if not file.is_file():
        return None
    space = SearchSpace.from_tree(read_yaml(file).tree["recipe"])
    return space if hashes == {space.hash} else None
