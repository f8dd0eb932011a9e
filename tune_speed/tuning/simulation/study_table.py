"""A table of recorded runs from the trials of a study, on which searches are then simulated."""

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.comparability import target_of
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.study.parameter import Scalar
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.simulation.recorded import DIVERGED, DONE, OOM, write_table

MIN_RUNS = 5
# Numbers with so many repeats on average were listed; a range would hardly repeat any.
REPEATS = 3
# Numbers that span this factor were searched over their logarithm.
LOG_FACTOR = 10.0
STATUSES = {Status.REACHED: DONE, Status.MISSED: DONE, Status.DIVERGED: DIVERGED, Status.OOM: OOM}


class StudyTable(NamedTuple):
    """What `write_table` takes, and what was left out of it."""

    rows: list[dict[str, Any]]
    metadata: dict[str, Any]
    left_out: dict[str, int]
    """Number of trials by the reason for which they are no part of the table."""
    is_own_space: bool
    """Whether the space is that of the study's file, and not what its trials span."""


def table_from_records(
    records: Sequence[TrialRecord], *, space: SearchSpace | None, command: str
) -> StudyTable:
    """Returns the table of a study's finished trials, as far as they can be replayed.

    The records have curves; without a `space`, it is what their parameters span.

    Raises: ConfigError if fewer than five can be replayed.
    """
    most = Counter(map(_setting, records)).most_common(1)
    judged = [(record, _unusable(record, setting=most[0][0])) for record in records]
    usable = [record for record, reason in judged if reason is None]
    left_out = Counter(reason for _, reason in judged if reason is not None)
    if len(usable) < MIN_RUNS or not any(STATUSES.get(r.status) == DONE for r in usable):
        reasons = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "none"
        raise ConfigError(
            f"A table needs at least {MIN_RUNS} trials that went to their end, but there are"
            f" {len(usable)} usable ones (left out: {reasons}). Let the study run on with"
            " `tune-speed search … --resume`."
        )
    is_own_space = space is not None
    space = space or SearchSpace.from_tree(derived_tree([record.params for record in usable]))
    first = usable[0]
    metadata = {
        "name": f"{first.study} ({first.workload_name})",
        "space": space.tree,
        "target": target_of(first.workload).goal,
        "mode": _mode(first),
        "clock": "as the study recorded it",
        "device": str(first.device),
        "command": command,
        "environment": {k: v for k, v in first.environment.items() if k != "host"},
    }
    return StudyTable([_row(record) for record in usable], metadata, dict(left_out), is_own_space)


def _setting(record: TrialRecord) -> tuple[str, str]:
    return record.workload_hash, str(record.device)


def _mode(record: TrialRecord) -> str:
    return str(record.workload.get("mode", "fixed_length"))


def _unusable(record: TrialRecord, *, setting: tuple[str, str]) -> str | None:
    if _setting(record) != setting:
        return "on another device or workload"
    if record.status == Status.FAILED:
        return "failed"
    if record.status == Status.CAPPED and _mode(record) != "anytime":
        return "stopped before their end"
    if record.status != Status.OOM and not _evaluations(record):
        return "without a curve"
    return None


def _evaluations(record: TrialRecord) -> list[tuple[Evaluation, float]]:
    measured = record.runs[-1].measured(target_of(record.workload).metric)
    return [(evaluation, metric) for evaluation, metric in measured if evaluation.step]


def _row(record: TrialRecord) -> dict[str, Any]:
    measured, epochs = _evaluations(record), record.recipe.get("epochs")
    planned_s, last = None, measured[-1][0] if measured else None
    if last is not None and last.epoch and isinstance(epochs, int | float):
        # The clock at which all epochs would be done, but a run ends at the time limit at latest.
        limit_s = float(record.workload.get("max_train_s") or float("inf"))
        planned_s = max(last.train_s, min(limit_s, last.train_s * epochs / last.epoch))
    return {
        "params": json.dumps(record.params),
        "step": [each.step for each, _ in measured],
        "train_s": [each.train_s for each, _ in measured],
        "metric": [target_of(record.workload).score(metric) for _, metric in measured],
        "status": STATUSES.get(record.status, DONE),
        "seed": record.runs[-1].seed,
        "planned_s": planned_s,
    }


def derived_tree(configurations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the tree of the smallest search space that holds all configurations.

    Numbers span a range, over the logarithm where they span a factor of 10; numbers that are often
    repeated, and all else, are choices.
    """
    names = list(dict.fromkeys(name for params in configurations for name in params))
    seen = {name: [p[name] for p in configurations if name in p] for name in names}
    return _below("", seen)


def _below(start: str, seen: Mapping[str, list[Scalar]]) -> dict[str, Any]:
    names = (name.removeprefix(start) for name in seen if name.startswith(start))
    segments = dict.fromkeys(name.partition(".")[0] for name in names)
    return {segment: _node(f"{start}{segment}", seen) for segment in segments}


def _node(path: str, seen: Mapping[str, list[Scalar]]) -> Any:
    if path not in seen:
        return _below(f"{path}.", seen)
    values = list(dict.fromkeys(seen[path]))
    if any(name.startswith(f"{path}.") for name in seen):
        return {"choices": {str(v): _node(f"{path}.{v}", seen) for v in values}}
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return {"choices": values}
    numbers.sort()
    if len(numbers) == 1 or REPEATS * len(numbers) <= len(seen[path]):
        return {"choices": numbers}
    low, high = numbers[0], numbers[-1]
    is_log = low > 0 and high / low >= LOG_FACTOR
    return {"low": low, "high": high, **({"log": True} if is_log else {})}


def save_study(study: str, path: Path, *, on_trial: Callable[[int, int], None]) -> StudyTable:
    """Writes a table of recorded runs from a study in MLflow, and returns it.

    The space is that of the study's file, or what the trials span where there is none, or it has
    another one. `on_trial` gets, for each trial that was read, how many were and of how many.

    Raises: ConfigError if the study has too few trials that can be replayed; ServiceError if MLflow
        does not answer or has no such study; StorageError if the file cannot be written.
    """
    from tune_speed.tracking.reader.queries import Query, find_trials, with_curves
    from tune_speed.tracking.store.store import Store

    store = Store()
    found = find_trials(store, Query(study=study))
    records = []
    for number, trial in enumerate(with_curves(store, found), start=1):
        records.append(trial.record)
        on_trial(number, len(found))
    records.sort(key=lambda record: record.trial_id)
    space = _space_of(study, hashes={record.space_hash for record in records})
    command = shlex.join(["tune-speed", "simulate", "--from-study", study, "--out", path.name])
    table = table_from_records(records, space=space, command=command)
    write_table(path, table.rows, table.metadata)
    return table


def _space_of(study: str, *, hashes: set[str]) -> SearchSpace | None:
    from tune_speed.core.folders import studies_folder
    from tune_speed.study.yaml import read_yaml

    file = studies_folder() / study / "study.yaml"
    if not file.is_file():
        return None
    space = SearchSpace.from_tree(read_yaml(file).tree["recipe"])
    return space if hashes == {space.hash} else None
