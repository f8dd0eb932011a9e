"""The columns of a result, each defined here alone: of boards, listings, filters and MLflow.

`METRICS` says what every metric of ours in MLflow means; tags are in `reporting/README.md`. `<…>`
in a name stands for whatever is there. Of a certified trial, each run has its metrics under
`<name>/seed_<seed>`.
"""

import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import Field
from pydantic.fields import FieldInfo

from tune_speed.core.comparability import final_metric
from tune_speed.core.config import Config
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.stats import median_time_s
from tune_speed.core.text import ABSENT

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Column:
    """One figure or fact of a result."""

    about: str
    of: Callable[[TrialRecord], Value] | None = None
    of_run: Callable[[RunResult], Value] | None = None
    """In place of `of`: the value of a run, otherwise what has its name; a trial has its last."""
    unit: str = ""
    """`1` for counts and shares, empty for words."""
    format: str = ""
    """Format specification for people, such as `.2f`; tables of programs have it unrounded."""
    heading: str = ""
    is_metric: bool = False
    """Whether MLflow has `of_run` of each run as a metric."""
    among: Collection[str] = ()
    kind: type[str] | type[int] | type[float] = str

    @property
    def is_number(self) -> bool:
        return self.kind is not str

    @property
    def about_with_unit(self) -> str:
        return f"{self.about} [{self.unit}]" if self.unit not in ("", "1") else self.about

    def value(self, record: TrialRecord) -> Value:
        if self.of is not None:
            return self.of(record)
        return self.of_run(record.runs[-1]) if self.of_run else None

    def text(self, value: Value) -> str:
        """Returns a value for people, `–` for None."""
        return ABSENT if value is None else format(value, self.format)


def column(about: str, of: Callable[[TrialRecord], Value] | None = None, **facts: Any) -> Any:
    field: FieldInfo = Field()
    field.metadata.append(Column(about, of, **facts))
    return field


class BoardColumns(Config):
    """Columns that leaderboards have too."""

    study: str = column("name of the study", lambda r: r.study)
    trial_id: str = column(
        "number of the trial in its study: t0007",
        lambda r: r.trial_id,
        heading="trial",
    )
    status: str = column(
        "how the last run ended; `capped` is shown as stopped, time limit or interrupted",
        lambda r: r.status.value,
        among=tuple(status.value for status in Status),
    )
    time_to_target_s: float | None = column(
        "training clock when the target held: median over the runs, a miss counts as infinite",
        lambda r: median_time_s([x.time_to_target_s for x in r.runs]) if r.runs else None,
        unit="s",
        format=".2f",
        heading="time to target [s]",
    )
    final_metric: float | None = column(
        "the target's metric at the end of the last run",
        final_metric,
        unit="as the metric's",
        format=".4f",
        heading="final",
    )
    hits: int = column(
        "runs that met the target",
        lambda r: sum(run.status is Status.REACHED for run in r.runs),
        unit="1",
    )
    n: int = column("runs, hits and misses", lambda r: len(r.runs), unit="1")
    steps: int = column("optimizer steps of the last run", unit="1")
    images_per_s: float | None = column(
        "training samples per second of the training clock",
        unit="1/s",
        format=".0f",
        heading="images/s",
        is_metric=True,
    )
    flop_per_s: float | None = column(
        "operations of forward and backward per second of the training clock, without init_s",
        unit="FLOP/s",
        format=".2e",
        heading="FLOP/s",
        is_metric=True,
    )
    peak_memory_gib: float | None = column(
        "peak of the device's memory in the last run; CPU: resident",
        unit="GiB",
        format=".2f",
        heading="GiB",
        is_metric=True,
    )
    peak_memory_frac: float | None = column(
        "peak of the device's memory over what the last run was allowed to use",
        of_run=lambda x: (
            x.peak_memory_gib / x.memory_limit_gib
            if x.peak_memory_gib is not None and x.memory_limit_gib
            else None
        ),
        unit="1",
        format=".2f",
        is_metric=True,
    )
    power_w: float | None = column(
        "mean power of its devices in the last run's training, with nobody else on them",
        unit="W",
        format=".0f",
        heading="power [W]",
        is_metric=True,
    )
    timing: str = column(
        "what the training clock is made of: isolated, disturbed, exclusive or shared",
        lambda r: ", ".join(sorted({run.timing.value for run in r.runs})),
    )
    reclocked: str = column(
        "step time by the windows at the time → by all windows, and how many; empty if the same",
        heading="re-clocked",
    )
    slowdown: float | None = column(
        "time next to others on the device over time alone", unit="1", format=".2f", is_metric=True
    )


class TrialColumns(BoardColumns):
    """All columns of a trial; boards hold those of the workload and the device once for all."""

    workload: str = column("name of the workload", lambda r: r.workload_name)
    device: str = column("name of the device", lambda r: str(r.device))
    kind: str = column(
        "from a search, or certified",
        lambda r: r.kind,
        among=("estimate", "certified"),
    )
    samples: int = column("training samples that the last run saw", unit="1")
    train_s: float = column(
        "training clock of the last run", of_run=lambda x: x.clocks.train_s, unit="s"
    )
    wall_s: float = column(
        "the last run from its first line to its last", of_run=lambda x: x.clocks.wall_s, unit="s"
    )
    step_time_ms: float | None = column(
        "training clock per optimizer step",
        unit="ms",
        format=".4g",
        heading="step [ms]",
        is_metric=True,
    )
    idle_power_w: float | None = column(
        "power of its devices while nothing trained, measured before the last run",
        unit="W",
        format=".0f",
        is_metric=True,
    )
    energy_j: float | None = column(
        "energy to the target: mean power times time to target, of the last run",
        unit="J",
        format=".4g",
        heading="energy [J]",
        is_metric=True,
    )
    cost: float | None = column(
        "cost of the last run to the target: time to target times price, all devices of it",
        lambda r: r.cost_of(r.time_to_target_s),
        format=".4g",
    )
    seed: int = column("seed of the last run", unit="1")
    stop_reason: str = column("why the last run ended, in words", lambda r: str(r.stop_reason))
    protocol_version: int = column(
        "version of the measuring rules", lambda r: r.protocol_version, unit="1"
    )
    commit: str | None = column("commit of tune_speed", lambda r: r.environment.get("commit"))
    started_at: str = column("when it began (UTC, ISO 8601)", lambda r: r.started_at)
    finished_at: str = column("when it ended (UTC, ISO 8601)", lambda r: r.finished_at)


@cache
def columns_of(kind: type[Config]) -> Mapping[str, Column]:
    return {
        name: replace(
            column,
            kind=type_of(field.annotation),
            of_run=None if column.of else column.of_run or attrgetter(name),
        )
        for name, field in kind.model_fields.items()
        for column in field.metadata
        if isinstance(column, Column)
    }


def type_of(annotation: Any) -> Any:
    """Returns the type of a field that may be None: float for `float | None`."""
    (found,) = set(typing.get_args(annotation)) - {types.NoneType} or {annotation}
    return found


COLUMNS: Mapping[str, Column] = columns_of(TrialColumns)
"""All columns of results, by name; settings of a recipe have the names of their places in it."""


def values_of(record: TrialRecord, kind: type[Config] = TrialColumns) -> dict[str, Value]:
    return {name: column.value(record) for name, column in columns_of(kind).items()}


def run_metrics(run: RunResult) -> dict[str, Any]:
    return {name: c.of_run(run) for name, c in COLUMNS.items() if c.is_metric and c.of_run}


class MetricAbout(NamedTuple):
    """A metric, in words."""

    unit: str
    """`1` for shares and counts."""
    when: str
    """`steps`: at each evaluation, its timestamp the run's start plus the training clock; `end`:
    once; `search`: on the parent run, over time."""
    about: str


# Columns of results that are metrics beside those with `is_metric`.
_COLUMNS = ("time_to_target_s", "final_metric", "hits", "n", "wall_s")

METRICS: dict[str, MetricAbout] = {
    "accuracy": MetricAbout("1", "steps", "share of correct predictions, in [0, 1]"),
    "macro_f1": MetricAbout("1", "steps", "mean F1 score of the classes, in [0, 1]"),
    "micro_f1": MetricAbout("1", "steps", "F1 score of all classes together, in [0, 1]"),
    "val_loss": MetricAbout("nat", "steps", "mean cross-entropy of the evaluated part"),
    "train_loss": MetricAbout("nat", "steps", "mean training loss since the evaluation before"),
    "train_s": MetricAbout(
        "s", "steps", "training clock; as the x-axis it shows curves over training seconds"
    ),
    "reached": MetricAbout("1", "end", "1 if the target was met, else 0"),
    "amortised_time_to_target_s": MetricAbout(
        "s", "end", "time to target without init_s, where there is an init_s"
    ),
    "gap": MetricAbout("1", "end", "how far the target's metric stayed off the target; 0: met"),
    "final_accuracy": MetricAbout("1", "end", "accuracy of the last evaluation"),
    "final_macro_f1": MetricAbout("1", "end", "macro F1 score of the last evaluation"),
    "final_<metric>": MetricAbout("as the metric's", "end", "final_metric, by its name"),
    "expected_s": MetricAbout(
        "s", "end", "expected time with restarts; only a trial that has a rank has it"
    ),
    "fed_ratio": MetricAbout("1", "end", "share of the time in which no step waited for data"),
    "gpu_utilisation": MetricAbout("1", "end", "share of time in which a kernel ran on the GPU"),
    "device_memory_gib": MetricAbout(
        "GiB", "end", "most memory in use on the GPU at an evaluation, co-tenants included"
    ),
    "setup_s": MetricAbout("s", "end", "data to the device, model and optimizer built"),
    "compile_s": MetricAbout("s", "end", "warm-up on dummy data, compilation included"),
    "eval_s": MetricAbout("s", "end", "scheduled evaluations"),
    "waiting_s": MetricAbout("s", "end", "standing still while somebody else measured"),
    "measuring_s": MetricAbout("s", "end", "measuring the isolated step time"),
    "init_s": MetricAbout("s", "end", "part of train_s before the first step: pretraining"),
    "shared_train_s": MetricAbout("s", "end", "seconds that passed in training, device shared"),
    **{
        name: MetricAbout(column.unit, "end", column.about)
        for name, column in COLUMNS.items()
        if column.is_metric or name in _COLUMNS
    },
    "trials": MetricAbout("1", "search", "finished trials"),
    "trials_<status>": MetricAbout("1", "search", "finished trials with that status"),
    "best_time_to_target_s": MetricAbout("s", "search", "the least time to target so far"),
}
