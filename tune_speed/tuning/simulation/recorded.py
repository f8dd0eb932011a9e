"""Benchmarks of searches from real trainings: Parquet tables of recorded learning curves.

| column                      | what it holds                                                  |
|-----------------------------|----------------------------------------------------------------|
| `params`                    | the configuration by dotted path, as JSON                      |
| `step`, `train_s`, `metric` | lists over evaluations, that of the untrained model left out   |
| `status`                    | `done`, `diverged` (at its last evaluation) or `oom`           |
| `seed`                      | of the run                                                     |
| `planned_s` (may be absent) | clock at which the run was to end [s]; null: as similar runs   |

The file's metadata has JSON under `tune_speed`: name, space (the tree), target, mode, and how the
table was made. A configuration that nobody ran gets the nearest run; one that was run several
times, with other seeds, gets these by turns.
"""

import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, ValidationError

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, writing
from tune_speed.study.parameter import Parameter
from tune_speed.study.space import Params, SearchSpace
from tune_speed.tuning.driver.imported_trials import read_table
from tune_speed.tuning.policy.curve import NO_CURVE, Curve, Mode
from tune_speed.tuning.policy.encoding import LOG_FACTOR, UNUSED


class Nearest:
    """Finds the nearest of the configurations that agree in choices without an order.

    Of these, in listed numbers if some agree; then by Euclidean distance, each range of length 1
    (over its logarithm where it is searched so).
    """

    def __init__(self, space: SearchSpace, configurations: Sequence[Mapping[str, Any]]) -> None:
        categorical = [p for p in space.parameters if p.kind == "categorical"]
        self._listed = [p.name for p in categorical if _is_numeric(p)]
        self._unordered = [p.name for p in categorical if not _is_numeric(p)]
        ordered = [p for p in space.parameters if p.kind != "categorical" or _is_numeric(p)]
        self._axes: list[tuple[str, Callable[[float], float], float, float]] = []
        for parameter in ordered:
            ends = [float(end) for end in parameter.ends() if isinstance(end, int | float)]
            low, high = min(ends), max(ends)
            spans = bool(parameter.choices) and low > 0 and high / low >= LOG_FACTOR
            scale: Callable[[float], float] = math.log if parameter.log or spans else float
            width = scale(high) - scale(low) or 1.0
            self._axes.append((parameter.name, scale, scale(low), width))
        self._keys = [self._key(params) for params in configurations]
        self._points = np.array([self._point(params) for params in configurations])
        self.cells = _grouped(self._keys)
        """Positions of the configurations that agree in every choice."""
        self._groups = _grouped([unordered for unordered, _ in self._keys])

    def __call__(self, params: Mapping[str, Any]) -> int:
        """Returns the position of the nearest configuration, of equal ones the first."""
        key = self._key(params)
        squares = np.square(self._points - np.array(self._point(params))).sum(axis=1)
        where = self.cells.get(key, self._groups.get(key[0]))
        if where is None:
            # No run made this combination of choices: each choice that differs counts as 1.
            differing = [sum(map(operator.ne, unordered, key[0])) for unordered, _ in self._keys]
            return int((squares + np.array(differing)).argmin())
        return int(where[squares[where].argmin()])

    def _key(self, params: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        unordered = tuple(params.get(name) for name in self._unordered)
        return unordered, tuple(params.get(name) for name in self._listed)

    def _point(self, params: Mapping[str, Any]) -> list[float]:
        return [
            (scale(params[name]) - low) / width if name in params else UNUSED
            for name, scale, low, width in self._axes
        ]


def _grouped(keys: Sequence[Any]) -> dict[Any, Any]:
    groups: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return {key: np.array(positions) for key, positions in groups.items()}


def _is_numeric(parameter: Parameter) -> bool:
    # Python's bool is an int, but True and False have no distance.
    return all(isinstance(c, int | float) and not isinstance(c, bool) for c in parameter.choices)


METADATA = b"tune_speed"
SCHEMA = pa.schema(
    {
        "params": pa.string(),
        "step": pa.list_(pa.int64()),
        "train_s": pa.list_(pa.float64()),
        "metric": pa.list_(pa.float64()),
        "status": pa.string(),
        "seed": pa.int64(),
        "planned_s": pa.float64(),
    }
)
OPTIONAL = ("planned_s",)
DONE, DIVERGED, OOM = "done", "diverged", "oom"


class Description(Config):
    """What a table says of itself, as far as a search needs it."""

    # How a table was made is there for its readers, and has any fields.
    model_config = ConfigDict(extra="ignore")

    name: str
    space: dict[str, Any]
    target: float
    mode: Mode


class RecordedRun(NamedTuple):
    """One training."""

    params: Params
    curve: Curve
    is_done: bool
    """Whether it went to the end that it was to have."""
    planned_s: float
    """Training clock at that end [s]; NaN if the table does not say."""


class RecordedBenchmark:
    """Real trainings, replayed. Read from a file by `RecordedBenchmark.load`."""

    def __init__(
        self,
        *,
        name: str,
        space: SearchSpace,
        target: float,
        mode: Mode,
        runs: Sequence[RecordedRun],
    ) -> None:
        self.name, self.space, self.target = name, space, target
        self.mode: Mode = mode
        self.runs = tuple(runs)
        self.nearest = Nearest(space, [run.params for run in runs])
        """From a configuration to the position of its first run."""
        equal = _grouped([json.dumps(run.params, sort_keys=True) for run in runs])
        self._equal = {int(own[0]): own for own in equal.values()}
        self._calls, self._seed = Counter[int](), 0
        # Where a table does not say, it is the median of those that agree in every choice, or
        # else of all.
        ends_s = np.array([run.planned_s for run in runs])
        overall_s = float(np.nanmedian(ends_s))
        for where in self.nearest.cells.values():
            known = ends_s[where][~np.isnan(ends_s[where])]
            typical_s = float(np.median(known)) if len(known) else overall_s
            ends_s[where] = np.where(np.isnan(ends_s[where]), typical_s, ends_s[where])
        self._planned_s = ends_s

    @classmethod
    def load(cls, path: Path | str) -> "RecordedBenchmark":
        """Returns the benchmark of a file.

        Raises: ConfigError if the file is no such table, or is damaged.
        """
        table, description, space = _read(Path(path))
        runs = []
        for number, row in enumerate(table.to_pylist(), start=1):
            try:
                runs.append(_run(row, space))
            except (ConfigError, ValueError, TypeError, RecursionError) as error:
                raise _unusable(path, f"row {number}: {error}") from error
        if not any(run.is_done for run in runs):
            raise _unusable(path, "no run went to its end")
        name, target, mode = description.name, description.target, description.mode
        return cls(name=name, space=space, target=target, mode=mode, runs=runs)

    def fresh(self, seed: int) -> "RecordedBenchmark":
        other = copy(self)
        other._calls, other._seed = Counter[int](), seed
        return other

    def curve(self, params: Mapping[str, Any]) -> Curve:
        first = self.nearest(params)
        own = self._equal[first]
        order = np.random.default_rng([self._seed, first]).permutation(len(own))
        self._calls[first] += 1
        which = int(own[order[(self._calls[first] - 1) % len(own)]])
        return self.runs[which].curve

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return float(self._planned_s[self.nearest(params)])

    @property
    def full_run_s(self) -> float:
        return float(self._planned_s.max())


def _read(path: Path) -> tuple[Any, Description, SearchSpace]:
    if not path.is_file():
        raise ConfigError(f"{path} must be a recorded benchmark, but there is no such file.")
    try:
        table = read_table(path)
        text = (table.schema.metadata or {})[METADATA]
        description = Description.model_validate_json(text)
        space = SearchSpace.from_tree(description.space)
    except KeyError as error:
        raise _unusable(path, "its metadata has nothing under `tune_speed`") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise _unusable(path, f"its metadata: {wrong}") from error
    except ConfigError as error:
        raise _unusable(path, f"its search space: {error}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unusable(path, f"it cannot be read as Parquet: {error}") from error
    missing = [n for n in SCHEMA.names if n not in table.column_names and n not in OPTIONAL]
    if missing:
        raise _unusable(path, f"columns are missing: {', '.join(missing)}")
    return table, description, space


def _unusable(path: Path | str, why: str) -> ConfigError:
    return ConfigError(
        f"{path} must be a table of recorded runs, but it is not: {why.rstrip('.')}. Make one from"
        " a study of yours with `tune-speed simulate --from-study NAME --out FILE.parquet`, or"
        " fetch this one again."
    )


def _run(row: Mapping[str, Any], space: SearchSpace) -> RecordedRun:
    params = json.loads(row["params"])
    if not isinstance(params, dict):
        raise ValueError(f"`params` must be a mapping, but got {row['params']}")
    status = row["status"]
    if status not in (DONE, DIVERGED, OOM):
        raise ValueError(f"`status` must be done, diverged or oom, but got {status}")
    curve = NO_CURVE if status == OOM else _curve(row, diverged=status == DIVERGED)
    is_done, planned_s = status == DONE, row.get("planned_s")
    if planned_s is None:
        planned_s = curve.end_s if is_done else math.nan
    elif not curve.end_s <= planned_s < math.inf:
        raise ValueError(
            f"`planned_s` must not lie before the last evaluation, but got {planned_s}"
        )
    return RecordedRun(space.read(params), curve, is_done, planned_s)


def _curve(row: Mapping[str, Any], *, diverged: bool) -> Curve:
    train_s = np.array(row["train_s"], dtype=float)
    metric = np.array(row["metric"], dtype=float)
    if not len(train_s) or len(train_s) != len(metric):
        raise ValueError(f"{len(train_s)} of `train_s` and {len(metric)} of `metric`")
    if (
        not 0 <= train_s[0] <= train_s[-1] > 0
        or not (np.diff(train_s) > 0).all()
        or not np.isfinite(train_s).all()
    ):
        raise ValueError("`train_s` must increase")
    if diverged:
        metric[-1] = math.nan
    if not np.isfinite(metric[: len(metric) - diverged]).all():
        raise ValueError("`metric` must be finite where a run did not diverge")
    return Curve(train_s, metric)


def write_table(
    path: Path | str, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]
) -> None:
    """Writes rows (`params` as JSON, see the columns above) and metadata.

    Raises: StorageError if the file cannot be written.
    """
    path = Path(path)
    schema = SCHEMA.with_metadata({METADATA: json.dumps(metadata)})
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, compression="zstd")
