"""Finished trials from elsewhere, as prior trials: tables of other tools, and Optuna's storages.

Parameters, the target metric, `train_s` and how a run ended are read from the columns that
`columns` names, or else from the first of the names that other tools give them. Only rows that went
to their end count, and that end is what the policy learns of them. Clocks of elsewhere are not
compared with ours, and fields that are not searched are taken to be the same.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import pyarrow as pa
import pyarrow.parquet as pq
from optuna.exceptions import OptunaError
from optuna.trial import TrialState
from pydantic import ValidationError

from tune_speed.core.errors import ConfigError, one_line
from tune_speed.core.records import Status
from tune_speed.core.redact import redact
from tune_speed.study.parameter import is_number
from tune_speed.study.settings import PriorFile
from tune_speed.study.space import Params, SearchSpace
from tune_speed.study.yaml import core_scalar
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.prior_trials import CarriedOver
from tune_speed.tuning.policy.base import Outcome, PriorTrial
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.optuna_study import open_storage

WHOLE = ("", "reached", "missed", "finished", "complete", "completed", "terminated", "done")
"""What tools call a run that went to its end."""
MOST_LINES = 3
MOST_ROWS, MOST_BYTES = 100_000, 1 << 26
"""Of a table, as it is in memory: a few bytes can encode any number of equal rows."""
# What libraries raise of files and addresses that are not what they should be.
PYTHONS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
DAMAGE = (*PYTHONS, RuntimeError, MemoryError, AssertionError, csv.Error, OptunaError)
UNKNOWN_S = 1.0
"""What a run took whose time nobody says [s]: only shares of it count."""


class Row(NamedTuple):
    """A finished run of elsewhere."""

    where: str
    values: Mapping[str, Any]
    """By column; text is read as YAML reads it."""


def import_trials(given: PriorFile, *, space: SearchSpace, workload: Workload) -> CarriedOver:
    """Returns what a study can learn from rows, and why not from others. Raises: ConfigError."""
    rows = list(read_rows(given))
    reader = _Reader(given, space, workload)
    if rows and not any(reader.metric(row) is not None for row in rows):
        known = ", ".join(list(rows[0].values)[:20])
        raise ConfigError(
            f"search.warm_start: {given.file} must have a column of the target metric"
            f" {workload.target.metric}, but its columns are {known}. Say which it is:"
            f" columns: {{{workload.target.metric}: NAME}}."
        )
    trials, left_out = [], defaultdict[str, list[str]](list)
    for row in rows:
        found = reader.trial(row)
        if isinstance(found, PriorTrial):
            trials.append(found)
        else:
            left_out[found].append(row.where)
    reasons = {
        f"{why} ({', '.join(rows[:MOST_LINES])}{', …' * (len(rows) > MOST_LINES)})": len(rows)
        for why, rows in left_out.items()
    }
    return CarriedOver(tuple(trials), reasons)


def read_rows(given: PriorFile) -> Iterator[Row]:
    """Yields the rows of a table, or the trials of an Optuna storage. Raises: ConfigError."""
    path = Path(given.file)
    try:
        if "://" not in given.file and not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        if "://" in given.file or path.suffix not in TABLES:
            rows = _optuna_rows(given)
        else:
            _bound(path.stat().st_size, "bytes", MOST_BYTES)
            rows = TABLES[path.suffix](path)
        for number, row in enumerate(rows, start=1):
            _bound(number, "rows", MOST_ROWS)
            yield row
    except DAMAGE as error:
        why = one_line(str(error)).rstrip(".") or type(error).__name__
        raise ConfigError(
            f"search.warm_start: {redact(given.file)} must be a readable {', '.join(TABLES)} file,"
            f" or a journal or URL of an Optuna storage, but {why}. Correct it, export it again, or"
            " leave it out."
        ) from error


def _bound(count: int, what: str, most: int) -> None:
    if count > most:
        raise ValueError(f"it has more than {most:,} {what}")


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line in (reader := csv.DictReader(file, strict=True)):
            values = {name: _typed(text) for name, text in line.items() if name is not None}
            yield Row(f"line {reader.line_num}", values)


def _typed(text: Any) -> Any:
    try:
        return core_scalar(text) if isinstance(text, str) else None
    except ValueError:  # A number of too many digits.
        return text


def _json_rows(path: Path) -> Iterator[Row]:
    # Not `splitlines`: JSON's texts may hold what it takes for the end of a line, such as U+2028.
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        try:
            values = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"line {number} is not an object")
        if values:
            yield Row(f"line {number}", {**values, **_flat(values)})


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{outer}.{name}": value
        for outer, inner in values.items()
        if isinstance(inner, dict)
        for name, value in inner.items()
    }


def _parquet_rows(path: Path) -> Iterator[Row]:
    for number, values in enumerate(read_table(path).to_pylist(), start=1):
        yield Row(f"row {number}", values)


def read_table(path: Path) -> pa.Table:
    """Returns a Parquet file's table. Raises: ValueError if it is too large; Arrow's errors."""
    batches: list[pa.RecordBatch] = []
    with pq.ParquetFile(path) as file:
        about, size = file.metadata, 0
        _bound(about.num_rows, "rows", MOST_ROWS)
        groups = map(about.row_group, range(about.num_row_groups))
        _bound(sum(group.total_byte_size for group in groups), "bytes", MOST_BYTES)
        for batch in file.iter_batches(batch_size=8):
            size += batch.nbytes
            _bound(size, "bytes", MOST_BYTES)
            batches.append(batch)
        return pa.Table.from_batches(batches, file.schema_arrow)


TABLES = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}


def _optuna_rows(given: PriorFile) -> Iterator[Row]:
    storage = open_storage(given.file)
    assert storage is not None
    study = optuna.load_study(study_name=given.study, storage=storage)
    for trial in study.get_trials(deepcopy=False):
        curve = sorted(trial.intermediate_values.items())
        values: dict[str, Any] = dict(trial.params)
        values |= {"value": trial.values[0]} if trial.values else {}
        values |= {"value": curve[-1][1]} if curve else {}
        clock = trial.user_attrs.get("train_s")
        values |= {"train_s": clock[-1] if isinstance(clock, list) and clock else clock}
        is_whole = trial.state == TrialState.COMPLETE
        yield Row(
            f"trial {trial.number}", {**values, "status": "" if is_whole else trial.state.name}
        )


class _Reader:
    def __init__(self, given: PriorFile, space: SearchSpace, workload: Workload) -> None:
        self._columns, self._space, self._workload = given.columns, space, workload

    def metric(self, row: Row) -> float | None:
        name = self._workload.target.metric
        forms = (name, f"final_{name}", f"metrics.{name}", f"summary.{name}", f"val_{name}")
        return _number(self._value(row, name, (*forms, "final_metric", "value")))

    def trial(self, row: Row) -> PriorTrial | str:
        ended = str(self._value(row, "status", ("status", "state", "State")) or "").lower()
        if ended not in WHOLE:
            return one_line(f"a run that is {ended}")
        metric = self.metric(row)
        if metric is None:
            return f"no {self._workload.target.metric}"
        if self._workload.mode == "anytime":
            return "times of another clock, which are all that counts where the length is free"
        try:
            params = self._params(row)
            Recipe.model_validate(self._space.build(params))
        except (ConfigError, ValidationError, LookupError) as error:
            said = error.args[0] if isinstance(error, LookupError) else one_line(str(error))
            return str(said)
        return PriorTrial(params, self._outcome(row, metric), same_times=False)

    def _params(self, row: Row) -> Params:
        params: Params = {}
        for parameter in self._space.parameters:
            if not parameter.is_active(params):
                continue
            name = parameter.name
            slashed = name.replace(".", "/")
            forms = [name, f"params.{name}", f"params_{name}", f"config.{name}"]
            forms += [f"params/{slashed}", f"config/{slashed}", slashed]
            value = self._value(row, name, (*forms, name.rpartition(".")[2]))
            if value is None:
                raise LookupError(f"no value of {name}")
            try:
                params[name] = parameter.read(value)
            except ValueError:
                raise LookupError(f"a value of {name} that this space has not") from None
        return params

    def _outcome(self, row: Row, metric: float) -> Outcome:
        target = self._workload.target
        time_s = _number(self._value(row, "train_s", ("train_s", "metrics.train_s")))
        end_s = time_s if time_s is not None and time_s > 0 else UNKNOWN_S
        curve = Curve(np.array([end_s]), np.array([target.score(metric)]))
        status = Status.REACHED if target.holds(metric) else Status.MISSED
        return Outcome(status, end_s, curve, planned_s=end_s)

    def _value(self, row: Row, name: str, forms: Sequence[str]) -> Any:
        if name in self._columns:
            return row.values.get(self._columns[name])
        return next((row.values[form] for form in forms if row.values.get(form) is not None), None)


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None
