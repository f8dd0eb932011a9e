"""What can be asked of a trial by name: figures of its result, and the settings of its recipe."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from tune_speed.core.comparability import final_metric
from tune_speed.core.config import flatten
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status, TrialRecord, named_settings
from tune_speed.core.stats import median_time_s

Value = str | int | float | bool | None


class Field(NamedTuple):
    """One figure or fact of a result."""

    about: str
    """One line, with the unit."""
    value: Callable[[TrialRecord], Value]
    is_number: bool = False
    """Whether its values are numbers; otherwise they are texts."""
    is_whole: bool = False
    """Whether its numbers are whole."""
    tag: str | None = None
    """MLflow tag that holds the same text."""
    among: Collection[str] = ()
    """All values that it can have; empty where they are not known."""


def _last(read: Callable[[RunResult], Value]) -> Callable[[TrialRecord], Value]:
    return lambda record: read(record.runs[-1]) if record.runs else None


def _median_s(record: TrialRecord) -> float | None:
    times = [run.time_to_target_s for run in record.runs]
    return median_time_s(times) if times else None


def _hits(record: TrialRecord) -> int:
    return sum(run.status is Status.REACHED for run in record.runs)


def _timing(record: TrialRecord) -> str:
    return ", ".join(sorted({run.timing.value for run in record.runs}))


def _text(about: str, value: Callable[[TrialRecord], Value], tag: str | None = None) -> Field:
    return Field(about, value, tag=tag)


def _number(about: str, value: Callable[[TrialRecord], Value]) -> Field:
    return Field(about, value, is_number=True)


def _count(about: str, value: Callable[[TrialRecord], Value]) -> Field:
    return Field(about, value, is_number=True, is_whole=True)


_STATUS = Field(
    "how the last run ended",
    lambda record: record.status.value,
    tag="tune_speed.status",
    among=[status.value for status in Status],
)
_KIND = Field(
    "from a search, or certified",
    lambda record: record.kind,
    tag="tune_speed.kind",
    among=("estimate", "certified"),
)

FIELDS: dict[str, Field] = {
    "study": _text("name of the study", lambda r: r.study, "tune_speed.study"),
    "trial_id": _text("number in the study: t0007", lambda r: r.trial_id, "tune_speed.trial_id"),
    "workload": _text("name of the workload", lambda r: r.workload_name, "tune_speed.workload"),
    "device": _text("name of the device", lambda r: r.device, "tune_speed.device"),
    "kind": _KIND,
    "status": _STATUS,
    "time_to_target_s": _number("median over the runs, misses counting as infinite [s]", _median_s),
    "final_metric": _number("target metric at the end of the last run", final_metric),
    "hits": _count("runs that met the target", _hits),
    "n": _count("runs, hits and misses", lambda record: len(record.runs)),
    "steps": _count("optimizer steps of the last run", _last(lambda r: r.steps)),
    "samples": _count("training samples that the last run saw", _last(lambda r: r.samples)),
    "train_s": _number("training clock of the last run [s]", _last(lambda r: r.clocks.train_s)),
    "wall_s": _number("whole length of the last run [s]", _last(lambda r: r.clocks.wall_s)),
    "images_per_s": _number(
        "training samples per second of the training clock", _last(lambda r: r.images_per_s)
    ),
    "step_time_ms": _number(
        "training clock per optimizer step [ms]", _last(lambda r: r.step_time_ms)
    ),
    "peak_memory_gib": _number(
        "peak memory of the last run [GiB]", _last(lambda r: r.peak_memory_gib)
    ),
    "slowdown": _number("time beside others over time alone", _last(lambda r: r.slowdown)),
    "timing": _text("what the clock is made of: isolated, exclusive, shared", _timing),
    "seed": _count("seed of the last run", _last(lambda r: r.seed)),
    "stop_reason": _text("why the last run ended, in words", lambda r: r.stop_reason),
    "protocol_version": _count("version of the measuring rules", lambda r: r.protocol_version),
    "commit": _text("commit of tune_speed", lambda r: r.environment.get("commit")),
    "started_at": _text("when it began (UTC, ISO 8601)", lambda record: record.started_at),
    "finished_at": _text("when it ended (UTC, ISO 8601)", lambda record: record.finished_at),
}
"""Result fields by name; a recipe's settings have the names of their places in it."""

RECIPE_FIELDS = (
    *("model", "optimizer", "lr_schedule", "epochs", "batch_size", "accumulation_steps"),
    *("effective_batch_size", "devices", "precision", "init_loss_scale", "loss_scale_growth_steps"),
    *("order", "augmentation", "label_smoothing", "clip_norm", "clip_value", "speedups", "loader"),
    *("channels_last", "compile", "compile_mode", "cuda_graph", "optimizer_kernels"),
    "deterministic",
)
"""Fields of a recipe at its top. These names never mean a field further down."""


def answers(record: TrialRecord) -> dict[str, Value]:
    """Returns all result fields of a record, by name."""
    return {name: field.value(record) for name, field in FIELDS.items()}


class FieldReader:
    """A record that is asked for values by name.

    A name is, in this order: a result field; the dotted place of a setting in the recipe that ran;
    the place of a choice, whose value is what was chosen (`optimizer` is `sgd`); a searched
    parameter that is none of these; the last part of one such place (`lr`).
    """

    def __init__(self, record: TrialRecord) -> None:
        self.record = record

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Settings and choices by dotted place; a number is always one of the recipe that ran."""
        searched = {k: v for k, v in self.record.params.items() if isinstance(v, str | bool)}
        return {**searched, **settings_of(self.record.recipe)}

    def value(self, name: str) -> Any:
        """Returns the value, None where the record has none.

        Raises: ConfigError if `name` is the last part of several places.
        """
        if name in FIELDS:
            return FIELDS[name].value(self.record)
        places = self._places(name)
        if len(places) > 1:
            raise ConfigError(
                f"`{name}` must name one setting, but the recipe of {self.record.study}/"
                f"{self.record.trial_id} has {', '.join(places)}. Give the whole name."
            )
        return self.settings[places[0]] if places else None

    def knows(self, name: str) -> bool:
        """Whether the record could have a value of this name."""
        return name in FIELDS or name in RECIPE_FIELDS or bool(self._places(name))

    def names(self) -> set[str]:
        """Returns all names that it knows."""
        last_parts = {place.rpartition(".")[2] for place in self.settings}
        return {*FIELDS, *RECIPE_FIELDS, *self.settings, *last_parts}

    def _places(self, name: str) -> list[str]:
        if name in self.settings:
            return [name]
        if "." in name or name in RECIPE_FIELDS:
            return []
        return [place for place in self.settings if place.rpartition(".")[2] == name]


def settings_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's settings and choices by dotted place: `optimizer`, `optimizer.sgd.lr`.

    What a training function was called with has the names that the function knows.
    """
    named = named_settings(recipe)
    return {**_choices(named), **flatten(named)}


def _choices(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns `{"optimizer": "sgd"}` for `{optimizer: {sgd: {…}}}`, by dotted place."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            continue
        if len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
            found[f"{prefix}{key}"] = str(next(iter(value)))
        found.update(_choices(value, f"{prefix}{key}."))
    return found
