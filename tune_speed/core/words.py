"""Why things happen, as data: a kind and its figures. Sentences are made here, one place a kind.

A sentence is a format string over the figures. What is in square brackets is left out where one
of its figures is missing. Beside Python's formats there are `{steps:counted step}`, `{s:compact}`,
`{p:chance}` and `{flag:?text}`, which is `text`. Devices, too, are named here.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cache, lru_cache
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    model_serializer,
    model_validator,
)

from tune_speed.core import old_words
from tune_speed.core.config import Config
from tune_speed.core.errors import reason_of
from tune_speed.core.old_words import read_device
from tune_speed.core.text import chance_text, compact, counted

IN_WORDS = "in words"
"""Context in which records are dumped for people and scripts, who read sentences."""
Figure = str | int | float

CLOCK_CHANGE = "{was_ms:.3g} → {now_ms:.3g} ms a step, by {windows:counted window}"
"""What a run's first steps took by windows at the time, and take by all."""


class Kind(StrEnum):
    """Kinds of one sort, each with its sentence."""

    words: str

    def __new__(cls, value: str, words: str = "{text}") -> Self:
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.words = words
        return kind


_COMPARED = "[ {sign} {target:g}]"
SCORE = "{metric} {value:.4f}" + _COMPARED
"""Of `Target.compared`."""
_LATE = "[, {late_s:.2f} s of training before its end]"
_AT = "stopped at {at_s:.1f} s: [it would not end before {end_s:.1f} s, and ]"


class StopKind(Kind):
    """Why a run, a trial or a whole search ended."""

    NONE = "none", ""
    OTHER = "other"
    TARGET_MET = "target_met", f"target met: {SCORE}{_LATE}"
    ENDED_IN_TIME = "ended_in_time", f"ended in time: {SCORE}{_LATE}"
    ENDED_BELOW = (
        "ended_below",
        f"the run ended with {SCORE}"
        "[, target {aim:g}][{is_single:?, at one evaluation: two in a row must hold it}]" + _LATE,
    )
    NOT_FINITE = "not_finite", "the {metric} is not finite after {steps:counted step}"
    NOT_A_NUMBER = "not_a_number", "the {metric} is {value} after {steps:counted step}"
    TIME_LIMIT = (
        "time_limit",
        "max_train_s = {limit_s:g} s passed[ with {metric} {value:.4f}]" + _COMPARED,
    )
    TOO_LONG = "too_long", "would take {planned_s:compact} s of max_train_s = {limit_s:g} s"
    OUT_OF_MEMORY = "out_of_memory", "out of memory, down to a micro-batch of {batch_size:d}"
    INTERRUPTED = "interrupted", "interrupted"
    ERROR = "error"
    PROCESS_DIED = "process_died", "its process died: {message}"
    NODE_DIED = "node_died", "its node died, or cannot be reached"
    HUNG = "hung", "hung: no step for {quiet_s:.0f} s"
    SILENT = "silent", "its process gave no sign of life for {quiet_s:g} s"
    BUDGET_OVER = "budget_over", "the search's time budget ended"
    SEARCH_STOPPED = "search_stopped", "the search was stopped"
    BY_HAND = "by_hand", "stopped by hand"
    SLOWER = ("slower", _AT + "{best}, which is recommended, takes {best_s:.1f} s with restarts")
    PAST_LIMIT = "past_limit", _AT + "the time limit is {limit_s:.1f} s"
    BELOW_RUNG = ("below_rung", _AT + "{ahead:d} of {num:d} trials promised more by {by_s:.1f} s")
    BELOW_CUTOFF = (
        "below_cutoff",
        _AT + "below ASHA's cutoff after {evaluations:counted evaluation}",
    )
    UNLIKELY = "unlikely"
    """Of searches of earlier versions."""
    SETTLED = (
        "settled",
        "the chance that the rest of the budget finds a recipe better by {better_by:.0%} is"
        " {chance:chance}",
    )
    NOTHING_LEFT = "nothing_left", "no untried configuration is left"
    NOTHING_BETTER = "nothing_better", "no untried configuration can beat the leader"


class ProposalKind(Kind):
    """Why a configuration is tried."""

    NONE = "none", ""
    OTHER = "other"
    POINT = "point", "a point to evaluate"
    BY_HAND = "by_hand", "added by hand: request {request_id}"
    SAMPLER = "sampler", "[{sampler}: ]the sampler's proposal"
    OPTUNA_SEARCH = "optuna_search", "OptunaSearch's proposal"
    OBSERVED = "observed", "proposed in the Optuna study"
    START = "start", "start: spread evenly[, {cost_s:.1f} s the cheapest of {num:d}]"
    RELATED = (
        "related",
        "one of the best of study {study}[, which agrees with {num:d} trials of this one:"
        " {correlation:.2f}]",
    )
    EXPLORATION = "exploration", "exploration: spread evenly"
    NO_CHANCE = "no_chance", "spread evenly: the model sees no chance"
    NOTHING_COULD_WIN = ("nothing_could_win", "spread evenly: {sampler} has nothing that could win")
    NEARER = (
        "nearer",
        "gain: {chance:chance} likely to come nearer the target than any so far"
        "[ at a cost of {cost_s:.1f} s]",
    )
    GAIN = (
        "gain",
        "gain: {chance:chance} likely to meet the target[ at a cost of {cost_s:.1f} s],"
        " {to_beat_s:.1f} s to beat",
    )
    BETTER_END = (
        "better_end",
        "gain: {chance:chance} likely to end better than any so far[ at a cost of {cost_s:.1f} s]",
    )
    AGAIN = (
        "again",
        "again: run {run:d} of {trial_id}'s configuration[, which met the target in {hits:d} of"
        " {runs:d}]",
    )


class NoteKind(Kind):
    """What limits the trust in a run's figures."""

    OTHER = "other"
    UNSEEN = "unseen", "co-tenants cannot be seen or stopped: {why}"
    OTHERS_CAME = "others_came", "others came to the device: {others}"
    DISTURBED = "disturbed", "others took its core for {share:.0%} of the time"
    REPORTED = "reported", "the training function reported its own clock"
    RECLOCKED = ("reclocked", "re-clocked: " + CLOCK_CHANGE)
    RESUMED = "resumed", "resumed at step {step:d}[ of {num_steps:d}]"
    UNUSABLE = "unusable", "begun anew, as its checkpoint could not be used: {why}"
    BEGUN_AGAIN = "begun_again", "begun anew: {why}"
    NOT_SAVED = "not_saved", "not saved at step {step:d}: {why}"
    LOADER = (
        "loader",
        "loader: auto is {way}: the pixels take {set_gib:.3g} GiB, where {share:.0%} of the"
        " {free_gib:.3g} GiB free on the device may hold them"
        "[; {host_gib:.3g} GiB of host memory are less too: `store: jpeg` takes about a tenth]",
    )


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        name, _, noun = format_spec.partition(" ")
        if format_spec[:1] == "?":
            return format_spec[1:]
        # Names, and numbers that are not finite, are shown as they are.
        if isinstance(value, str):
            return value
        try:
            if name == "counted":
                return counted(int(value), noun)
            if name == "chance":
                return chance_text(value)
            return compact(value) if name == "compact" else format(value, format_spec)
        except (ValueError, OverflowError):
            return str(value)


_WORDS = _Words()


def sentence(template: str, figures: Mapping[str, Any]) -> str:
    """Returns the sentence of a template, with a dash for a figure that it must have."""
    return "".join(
        _WORDS.vformat(part, (), figures)
        for part, names, may_lack in _parts(template)
        if not may_lack or figures.keys() >= names
    )


@cache
def _parts(template: str) -> tuple[tuple[str, frozenset[str], bool], ...]:
    parts = template.replace("]", "[").split("[")
    named = [frozenset(name for _, name, *_ in _WORDS.parse(part) if name) for part in parts]
    return tuple(
        (part, names, i % 2 == 1) for i, (part, names) in enumerate(zip(parts, named, strict=True))
    )


class Worded(Config):
    """What people and scripts read as `str` makes it, which earlier versions wrote."""

    # Lenient about JSON's types, and about fields of later versions.
    model_config = ConfigDict(strict=False, extra="ignore")

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        """Returns the fields of a text of an earlier version."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        return _fields_of(cls, data) if isinstance(data, str) else data

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> Any:
        return str(self) if info.context == IN_WORDS else handler(self)


@lru_cache(maxsize=1024)
def _fields_of(kind: type[Worded], text: str) -> dict[str, Any]:
    # The records of a store have few different devices and notes; a new sentence takes 0.2 ms.
    return kind.read(text)


class Said(Worded):
    """A kind and its figures; `str` makes its sentence."""

    suffix: ClassVar[str] = ""
    """What may follow the sentence of each kind."""
    kind: Kind
    figures: dict[str, Figure] = Field(default={}, exclude_if=lambda figures: not figures)
    """The numbers and names of its sentence; where there is a `text`, it is the sentence."""

    @classmethod
    def of(cls, kind: Kind, **figures: Any) -> Self:
        """Returns what is said of these figures; those that are None are not known."""
        return cls(kind=kind, figures={n: _figure(v) for n, v in figures.items() if v is not None})

    def __str__(self) -> str:
        return sentence(self._template, self.figures)

    @property
    def _template(self) -> str:
        return ("{text}" if "text" in self.figures else self.kind.words) + self.suffix

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        kinds: type[Kind] = cls.model_fields["kind"].annotation  # type: ignore[assignment]
        known = ((kind, kind.words) for kind in kinds if kind.words != "{text}")
        kind, figures = old_words.read(kinds.__name__, known, text, suffix=cls.suffix)
        fields = {"kind": kind, "figures": figures}
        with suppress(ValueError):
            if str(cls.model_validate(fields)) == text:
                return fields
        more = {name for _, names, _ in _parts(cls.suffix) for name in names}
        own = {name: value for name, value in figures.items() if name not in more}
        return {"kind": kind, "figures": {**own, "text": text}}

    @model_validator(mode="after")
    def _has_figures(self) -> Self:
        for _, names, may_lack in _parts(self._template):
            if not may_lack and not self.figures.keys() >= names:
                raise ValueError(f"{self.kind} must have {', '.join(names)}")
        return self


class StopReason(Said):
    """Why a run, a trial or a search ended."""

    suffix = (
        "[ (micro-batch {first_batch_size:d} ran out of memory, {ran_batch_size:d} did not)]"
        "[{runs_again:?; it is run again}]"
    )
    kind: StopKind = StopKind.NONE

    @classmethod
    def of_error(cls, error: BaseException) -> Self:
        """Returns that an error ended it: its kind, and its first line."""
        return cls.of(StopKind.ERROR, error=type(error).__name__, text=reason_of(error))

    def with_figures(self, **figures: Figure) -> Self:
        return self.of(self.kind, **self.figures, **figures)


class ProposalReason(Said):
    """Why a configuration is tried."""

    kind: ProposalKind = ProposalKind.NONE

    @property
    def request_id(self) -> Figure | None:
        """The person's request that asked for it; None: nobody's."""
        return self.figures.get("request_id")


class Note(Said):
    """What limits the trust in a run's figures."""

    kind: NoteKind

    @property
    def change(self) -> str:
        """What a step took before it was timed again, and takes now."""
        return sentence(CLOCK_CHANGE, self.figures)


def read_notes(text: str) -> tuple[Note, ...]:
    return tuple(Note.model_validate(note) for note in text.split("; ") if note)


Notes = Annotated[
    tuple[Note, ...],
    BeforeValidator(lambda data: read_notes(data) if isinstance(data, str) else data),
    WrapSerializer(lambda own, call, info: joined(own) if info.context == IN_WORDS else call(own)),
]


def joined(notes: Iterable[Note]) -> str:
    """Returns notes in a line; empty if there are none."""
    return "; ".join(map(str, notes))


def _figure(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Device(Worded):
    """Devices that train together, all of one type; `str` is their name."""

    type: str
    """Such as `NVIDIA H200`, or a CPU's model: `AMD EPYC`."""
    count: Annotated[int, Field(gt=0)] = 1
    threads: Annotated[int, Field(ge=0)] | None = None
    """Of one operation on a CPU, 0 if that is not known; None: it is none."""

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        return read_device(text)

    def __str__(self) -> str:
        one = f"cpu ({self.threads} threads, {self.type})" if self.threads else self.type
        return one if self.count == 1 else f"{self.count} x {one}"

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """What torch calls it."""
        return "cuda" if self.threads is None else "cpu"

    @property
    def one(self) -> Self:
        return self.model_copy(update={"count": 1})
