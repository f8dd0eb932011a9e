"""Stored results as pandas frames, for notebooks and scripts.

```python
results = tune_speed.Results()  # $MLFLOW_TRACKING_URI, or ./mlflow.db
fastest = results.best(workload="digits", where="optimizer=sgd and batch_size>=512")
```

`COLUMNS` says what the columns of each frame are, also of an empty one. Figures of different
workloads, protocols or devices are never ranked together.
"""

import inspect
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from tune_speed.core.config import Config, descriptions, did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Evaluation, Status
from tune_speed.reporting.leaderboard.queries import FIELDS, find_boards
from tune_speed.reporting.leaderboard.ranking import Board, Row
from tune_speed.reporting.trials.text import Trial, machine_row
from tune_speed.runtime.atomic_file import write_file
from tune_speed.tracking.columns import COLUMNS as RESULT_COLUMNS
from tune_speed.tracking.columns import TrialColumns, columns_of, type_of
from tune_speed.tracking.filter.where import where_of
from tune_speed.tracking.reader.queries import Query, by_board, find_trial, find_trials
from tune_speed.tracking.reader.studies import StudySummary, list_studies
from tune_speed.tracking.store.store import Store

# `Int64` and not `int64`, which has no missing value: pandas would make floats of the whole column.
TEXT, WHOLE, NUMBER, FLAG = "string", "Int64", "float64", "bool"
MOMENT = "datetime64[ms, UTC]"
_DTYPES = {str: TEXT, int: WHOLE, float: NUMBER, bool: FLAG}
EMPTY: Mapping[str, Sequence[Mapping[str, Any]]] = types.MappingProxyType({})

Method = TypeVar("Method", bound=Callable[..., Any])


class Column(NamedTuple):
    """A column of a frame."""

    about: str
    """One line, with the unit."""
    dtype: str
    """pandas' name of the type."""


def _columns_of(config: type[Config]) -> dict[str, Column]:
    defined, described = columns_of(config), descriptions(config)
    return {
        name: Column(
            defined[name].about_with_unit
            if name in defined
            else " ".join(described[name].split()).split(". ")[0].rstrip("."),
            MOMENT if name.endswith("_at") else _DTYPES[type_of(field.annotation)],
        )
        for name, field in config.model_fields.items()
        if name not in ("rows", "params", "recommended", "range_ends", "values")
    }


_STUDY = Column("name of the study", TEXT)
_TRIAL = Column("number of the trial in its study: t0007", TEXT)
_RUN_ID = Column("run in MLflow", TEXT)

COLUMNS: dict[str, dict[str, Column]] = {
    "best": {**_columns_of(Board), **_columns_of(Row)},
    "studies": {
        "study": _STUDY,
        "workload": Column("name of the workload", TEXT),
        "device": Column("name of the device", TEXT),
        "trials": Column("finished trials", WHOLE),
        **{status.value: Column(f"those that ended as {status.value}", WHOLE) for status in Status},
        "best_time_s": Column("least time to target [s]; missing: none met it", NUMBER),
        "best_trial": Column("the trial that has it", TEXT),
        "last_activity": Column("when a trial finished last (UTC)", MOMENT),
        "is_running": Column("whether a search has begun and not ended", FLAG),
    },
    "trials": {
        "run_id": _RUN_ID,
        **_columns_of(TrialColumns),
        "workload_hash": Column("hash over the workload and its data", TEXT),
    },
    "curves": {
        "run_id": _RUN_ID,
        "study": _STUDY,
        "trial_id": _TRIAL,
        "device": Column("name of the device", TEXT),
        "seed": Column("seed of the training", WHOLE),
        **_columns_of(Evaluation),
        "has_curve": Column("False: only the last evaluation is left", FLAG),
    },
}
"""Columns of each frame, by the method that returns it. `best` and `trials` have one more for each
searched parameter, `params.<name>`; `curves` one for each other metric, `values.<name>`."""


def _documented(method: Method) -> Method:
    columns = COLUMNS[method.__name__]
    width = max(map(len, columns))
    lines = [f"    {name:<{width}}  {each.about} ({each.dtype})" for name, each in columns.items()]
    method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", "Columns:", *lines])
    return method


class Results:
    """The results in a store; each call reads it again."""

    def __init__(self, uri: str | None = None) -> None:
        """Takes a store's address; None: $MLFLOW_TRACKING_URI, else `./mlflow.db`."""
        self._store = Store(uri)

    def __repr__(self) -> str:
        return f"Results({str(self._store)!r})"

    @_documented
    def best(
        self,
        workload: str | None = None,
        device: str | None = None,
        n: int = 5,
        *,
        where: str | None = None,
        study: str | None = None,
        kind: str | None = None,
        target: float | None = None,
        sort: str = "time",
    ) -> pd.DataFrame:
        """Returns the `n` fastest recipes of each leaderboard, one a row.

        `rank` counts within a leaderboard: one workload, protocol, device and kind. Recipes that
        missed the target are left out. With `where`, `trials`, `reached`, `tuning_cost_s` and
        `device_s` count the trials that fit.

        Args:
            workload: only of this workload.
            device: only of devices whose name contains this.
            n: rows of each leaderboard.
            where: a filter: `optimizer=sgd and batch_size>=512`.
            study: only of this study.
            kind: only `estimate` or `certified`.
            target: only leaderboards of this target, where a study has several.
            sort: by what rows are ranked: expected `time`, `cost` (on one leaderboard of all
                devices) or `energy`; None: by time, or as the goal of `study` says.

        Raises: ConfigError if an argument makes no sense; ServiceError if the store does not answer
            or does not hold the study.
        """
        if sort not in ("time", *FIELDS):
            raise ConfigError(f"sort must be one of time, {', '.join(FIELDS)}, but got {sort!r}.")
        if n < 1:
            raise ConfigError(f"n must be 1 or more, but got {n}.")
        query = Query(
            study=study,
            workload=workload,
            device=device,
            kind=_known_kind(kind),
            where=where_of(where),
        )
        boards = find_boards(self._store, query, target=target, top=n, order=sort)
        rows = [(board, row) for board in boards for row in board.rows if row.rank is not None]
        fixed = [{**board.model_dump(), **row.model_dump()} for board, row in rows]
        return _frame(fixed, COLUMNS["best"], more={"params": [row.params for _, row in rows]})

    @_documented
    def studies(self) -> pd.DataFrame:
        """Returns the studies, one a row, the latest active first. Raises: ServiceError."""
        return _frame(map(_study_row, list_studies(self._store)), COLUMNS["studies"])

    @_documented
    def trials(
        self, study: str, *, where: str | None = None, kind: str | None = None
    ) -> pd.DataFrame:
        """Returns a study's finished trials, one a row: board by board, the fastest first.

        `where` filters: `status=missed and lr>0.1`. Raises: ConfigError, ServiceError.
        """
        query = Query(study=study, kind=_known_kind(kind), where=where_of(where))
        found = by_board(find_trials(self._store, query))
        return trials_frame((trial.run_id, trial.record) for trial in found)

    @_documented
    def curves(self, run: str | Iterable[str]) -> pd.DataFrame:
        """Returns evaluations of trials, one a row, in the order of training.

        `run` is a run id, `study/trial`, `study/trial@certified`, or several, as a frame's column
        `run_id`. Raises: ServiceError, ConfigError.
        """
        # A text is an iterable of characters.
        names = [run] if isinstance(run, str) else run
        found = [find_trial(self._store, name) for name in names]
        rows = [
            {
                "run_id": trial.run_id,
                "study": trial.record.study,
                "trial_id": trial.record.trial_id,
                "device": str(trial.record.device),
                "seed": run.seed,
                "has_curve": trial.has_curve,
                **evaluation.model_dump(),
            }
            for trial in found
            for run in trial.record.runs
            for evaluation in run.evaluations
        ]
        return _frame(rows, COLUMNS["curves"], more={"values": [row["values"] for row in rows]})


def trials_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """Returns trials, one a row, in the columns of `Results.trials`."""
    listed = list(trials)
    rows = [machine_row(trial) | {"workload_hash": trial[1].workload_hash} for trial in listed]
    return _frame(rows, COLUMNS["trials"], more={"params": [row["params"] for row in rows]})


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Writes a frame; mixed values and lists become JSON. Raises: ConfigError, StorageError."""
    mixed = frame.select_dtypes(object).columns
    plain = frame.assign(
        **{name: frame[name].map(lambda v: None if v is None else json.dumps(v)) for name in mixed}
    )
    write_file(path, plain.to_parquet(index=False))


def _known_kind(kind: str | None) -> str | None:
    kinds = RESULT_COLUMNS["kind"].among
    if kind is None or kind in kinds:
        return kind
    near = did_you_mean(kind, kinds)
    raise ConfigError(f"kind must be one of {', '.join(kinds)}, but got {kind!r}{near or '.'}")


def _study_row(study: StudySummary) -> dict[str, Any]:
    return {
        "study": study.name,
        "workload": study.workload,
        "device": study.device,
        "trials": sum(study.num_trials.values()),
        **{status.value: study.num_trials.get(status, 0) for status in Status},
        "best_time_s": study.best_time_s,
        "best_trial": study.best_trial,
        "last_activity": study.last_activity,
        "is_running": study.is_running,
    }


def _frame(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Column],
    *,
    more: Mapping[str, Sequence[Mapping[str, Any]]] = EMPTY,
) -> pd.DataFrame:
    """Returns the rows' values of `columns`, and of all that is in `more` (one a row), prefixed."""
    listed = list(rows)
    data = {
        name: _series([row[name] for row in listed], column.dtype)
        for name, column in columns.items()
    }
    for prefix, found in more.items():
        for name in dict.fromkeys(name for row in found for name in row):
            data[f"{prefix}.{name}"] = _guessed([row.get(name) for row in found])
    return pd.DataFrame(data)


def _series(values: Sequence[Any], dtype: str) -> "pd.Series[Any]":
    if dtype == MOMENT:
        # An empty text is no moment; one without fractions of a second has another format.
        moments = pd.Series([value or None for value in values], dtype="string")
        return pd.to_datetime(moments, utc=True, format="ISO8601").dt.as_unit("ms")
    # With its type given, as an empty column would have another one than the same with rows.
    return pd.Series(values, dtype=dtype)


def _guessed(values: Sequence[Any]) -> "pd.Series[Any]":
    # By exact type: bool is a subclass of int, but has a dtype of its own.
    kinds = {type(value) for value in values} - {types.NoneType}
    of_one_kind = {bool: "boolean", int: WHOLE, float: NUMBER, str: TEXT}
    if kinds == {int, float}:
        return _series(values, NUMBER)
    return _series(values, of_one_kind.get(kinds.pop(), "object") if len(kinds) == 1 else "object")
