"""What a training leaves behind: frozen, JSON-able, and free of torch.

`RunResult` is one training with one seed; `TrialRecord` is one configuration of a study. They are
the only things that search, tracking and leaderboard share. A miss has no time to target (None):
it is never a number.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from tune_speed.core.config import Config, left_out
from tune_speed.core.prices import Prices, own_prices
from tune_speed.core.renamed import with_one_target, with_present_names
from tune_speed.core.text import Interval, chance_text, counted, interval_fields
from tune_speed.core.words import (
    IN_WORDS,
    Device,
    NoteKind,
    Notes,
    ProposalReason,
    StopKind,
    StopReason,
)

CLOCK_STATEMENT = (
    "train_s starts before the first weight or statistic is derived from data. In: loading,"
    " augmentation, forward, backward, optimizer. Out: set-up, compilation and warm-up on dummy"
    " data, scheduled evaluations, logging, waiting for another trial's measurement."
)
"""What the training clock counts, under the present `PROTOCOL_VERSION`."""

RecordedWorkload = Annotated[dict[str, Any], AfterValidator(with_one_target)]
"""A workload's tree that may have been written by an earlier version."""
RecordedRecipe = Annotated[dict[str, Any], AfterValidator(with_present_names)]
"""A recipe's tree that may have been written by an earlier version."""

# Version of the measuring rules (clock, crossing modes, split). Rows of different versions are
# never ranked together. 2: a search's times are steps times isolated step time; 1: wall-clock.
PROTOCOL_VERSION = 2


class Timing(StrEnum):
    """What a run's training clock is made of."""

    ISOLATED = "isolated"
    """Steps times the seconds of a step, measured while the device's other tenants stood still."""
    DISTURBED = "disturbed"
    """These or exclusive seconds, where strangers were at work: in each window, or all along."""
    EXCLUSIVE = "exclusive"
    """Seconds that passed, with nobody else on the device."""
    SHARED = "shared"
    """Seconds that passed, slowed by others on the device: an upper bound."""


CLOCK_WORDS = {
    Timing.SHARED: "seconds on a SHARED device, slowed by others: upper bounds",
    Timing.DISTURBED: "seconds DISTURBED by strangers on the device",
    Timing.ISOLATED: "steps × isolated step time",
    Timing.EXCLUSIVE: "seconds, with no other run of tune-speed on the device",
}
"""What times are made of, the least trustworthy first."""
CLOCKED = (Timing.ISOLATED, Timing.DISTURBED)
"""Of runs whose clock is made of step times."""
NOT_CERTIFIED = "not certified: disturbed"
"""Of a certification whose result does not count, see `TrialRecord.is_certified`."""


class Status(StrEnum):
    """How a run or a trial ended."""

    REACHED = "reached"
    """The target holds."""
    MISSED = "missed"
    """The run went to its end below the target."""
    CAPPED = "capped"
    """Stopped before its end: by the search, by the time limit or by Ctrl-C; see `ended_as`."""
    OOM = "oom"
    """Out of memory with a micro-batch of one."""
    DIVERGED = "diverged"
    """The loss became NaN or infinite."""
    FAILED = "failed"
    """An error; `traceback` holds it."""


ENDS = (Status.REACHED, Status.MISSED, Status.DIVERGED, Status.OOM)
"""How runs end that met the target or could not."""


def ended_as(run: "RunResult | TrialRecord") -> str:
    """Returns in a word or two for people how a run, or a trial's last run, ended.

    It is the status, but `capped` says too little: that is `stopped` by the search, `time limit`
    or `interrupted`; of a certification that was disturbed, `NOT_CERTIFIED`.
    """
    if isinstance(run, TrialRecord) and run.verdict == NOT_CERTIFIED:
        return NOT_CERTIFIED
    if run.status is not Status.CAPPED:
        return run.status.value
    return CAPPED_IN_WORDS.get(run.stop_reason.kind, "stopped")


CAPPED_IN_WORDS = {
    StopKind.TIME_LIMIT: "time limit",
    StopKind.TOO_LONG: "time limit",
    StopKind.INTERRUPTED: "interrupted",
}
ENDS_IN_WORDS = tuple(
    word
    for status in Status
    for word in (("stopped", "time limit", "interrupted") if status is Status.CAPPED else (status,))
)
"""What `ended_as` returns, in the order of `Status`."""


def counts_of_ends(records: Iterable["TrialRecord"]) -> dict[str, int]:
    """Returns how many records ended in each way, in these words; other ways are left out."""
    counts = Counter(map(ended_as, records))
    return {str(word): counts[word] for word in ENDS_IN_WORDS if counts[word]}


class Record(Config):
    """Base of the records: lenient about JSON's types, as they are read back from files."""

    # Strict would refuse JSON's lists for tuples and its strings for enums. Fields that this
    # version does not know are of another version's records.
    model_config = ConfigDict(strict=False, extra="ignore")


Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Evaluation(Record):
    """One evaluation on the split that the search sees, with the training clock at that moment."""

    step: Count
    """Optimizer steps done."""
    samples: Count
    """Training samples seen."""
    epoch: Amount
    """Passes over the training set done."""
    train_s: Amount
    """Training clock [s]."""
    accuracy: float | None = None
    """Share of correct predictions, in [0, 1]; None where a loop of one's own measures it not."""
    macro_f1: float | None = None
    """Mean over classes of the F1 score, in [0, 1]; None where it is not measured."""
    micro_f1: float | None = None
    """F1 score of all classes' counts together, in [0, 1]; None in records without it."""
    loss: float | None = None
    """Mean cross-entropy per sample [nat]; None if it is not finite, or not measured."""
    train_loss: float | None = None
    """Mean training loss per sample since the evaluation before; None at step 0, or not finite."""
    values: dict[str, float] = Field(default_factory=dict)
    """Other metrics by name, such as a target of one's own."""

    def value(self, metric: str) -> float | None:
        """Returns a metric by its name; None where it was not measured."""
        # Only of `MEASURED`: a metric may be called as any attribute is, such as `step` or `copy`.
        own = self.values.get(metric)
        return getattr(self, metric) if own is None and metric in MEASURED else own


MEASURED = ("accuracy", "macro_f1", "micro_f1", "loss", "train_loss")
"""Metrics that are fields of an evaluation."""


class Clocks(Record):
    """The clocks, in seconds. `train_s` is the one that counts."""

    setup_s: Amount = 0.0
    """Data to the device, model and optimizer built."""
    compile_s: Amount = 0.0
    """Warm-up on dummy data, compilation included."""
    train_s: Amount = 0.0
    """Training: loading, augmentation, forward, backward, optimizer."""
    eval_s: Amount = 0.0
    """Scheduled evaluations."""
    wall_s: Amount = 0.0
    """From the first line of the run to its last."""
    waiting_s: Amount = 0.0
    """Standing still while somebody else measured."""
    measuring_s: Amount = 0.0
    """Measuring the isolated step time, waiting for the turn included."""


class StepTime(Record):
    """Seconds of one optimizer step with the device to itself: of one window, or of several."""

    key: str
    """Throughput key: hash over all that changes a step's speed, device and versions included."""
    step_s: Positive
    """Mean over blocks of steps [s]; a step is `effective_batch_size` samples."""
    low_s: Amount
    """Lower end of the 95 % interval of the mean."""
    high_s: Amount
    """Upper end of it."""
    num_steps: Count
    """Steps that were timed."""
    measured_in: str
    """`study/trial` that measured it."""
    measured_at: str = ""
    """When: UTC, ISO 8601."""
    place: str = ""
    """Hash of device, host, settings and versions: all kinds of step of one place drift alike."""
    reference_s: Positive | None = None
    """Seconds of the reference step beside it: how fast the machine was. None: not measured."""
    disturbed: str = ""
    """What else was at work meanwhile, in words; empty: nothing that could be seen."""
    num_windows: Count = 1
    """Windows that it is the mean of, at the machine's speed that `reference_s` says."""
    power_w: Amount | None = left_out(None)
    """Mean power of the device meanwhile [W]; None: it counts no energy, or strangers took some."""


class Normalisation(Record):
    """By what pixels in [0, 1] are normalised: (pixel − mean) / deviation, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str = "the training part"
    """Whose statistics they are, for people."""

    def __str__(self) -> str:
        mean, std = (", ".join(f"{value:.4g}" for value in each) for each in (self.mean, self.std))
        return f"mean {mean}; deviation {std} ({self.source})"


class RunResult(Record):
    """One training with one seed."""

    status: Status
    seed: int
    stop_reason: StopReason
    """Why the run ended."""
    time_to_target_s: Positive | None = None
    """Training clock at which the target held [s]; None for anything but `reached`."""
    evaluations: tuple[Evaluation, ...] = ()
    clocks: Clocks = Field(default_factory=Clocks)
    steps: Count = 0
    samples: Count = 0
    images_per_s: Amount | None = None
    """Training samples per second of the training clock."""
    flop: Amount | None = None
    """Floating-point operations of all forwards and backwards; None: not counted."""
    step_time_ms: Amount | None = None
    """Training clock per optimizer step, without `init_s`."""
    timing: Timing = Timing.SHARED
    """What the training clock is made of."""
    step_times: tuple[StepTime, ...] = ()
    """Isolated step times that the training clock is made of, one a shape of step."""
    windows: tuple[StepTime, ...] = ()
    """Those that this run measured, as they were."""
    shape_steps: tuple[tuple[Count, Count], ...] = ()
    """The run as stretches of steps of one shape: its number among `step_times`, and the steps."""
    init_s: Amount = 0.0
    """Part of the training clock that went into the weights that the first step starts from:
    pretraining, statistics of the data [s]. Without it, the time is amortised over later runs."""
    shared_train_s: Amount | None = None
    """Seconds that passed in training, slowed by whoever shared the device."""
    slowdown: Amount | None = None
    """`shared_train_s` over `train_s`; None where the clock is not isolated."""
    cotenants: tuple[str, ...] = ()
    """Who else was on the device meanwhile: `study/trial`."""
    cpu_wait_s: Amount | None = None
    """Seconds that the run's threads waited for a core: other work was on the machine."""
    note: Notes = ()
    """What limits the trust in these figures; empty if nothing does."""
    fed_ratio: Amount | None = None
    """Share of the training time in which the loop did not wait for its next batch."""
    gpu_utilisation: Amount | None = None
    """Share of time in which some kernel ran on the GPU, the mean of samples at the evaluations."""
    peak_memory_gib: Amount | None = None
    """Peak of the device's allocator (CUDA), or of the process's resident memory (CPU)."""
    device_memory_gib: Amount | None = None
    """Most memory in use on the GPU at an evaluation, with contexts, caches and co-tenants."""
    memory_limit_gib: Amount | None = None
    """What the run was allowed to use."""
    gpu_memory_gib: Amount | None = None
    """Of the whole GPU, whatever the run's share of it."""
    batch_size: int | None = None
    """Micro-batch that ran in the end; smaller than the recipe's after an out-of-memory retry."""
    accumulation_steps: int | None = None
    device: Device = Device(type="cpu", threads=0)
    """Its devices, such as `cpu (2 threads, AMD EPYC)` or `NVIDIA H200`."""
    power_w: Amount | None = left_out(None)
    """Mean power of its devices in training, with nobody else on them [W]; None: not known."""
    idle_power_w: Amount | None = left_out(None)
    """Their power while nothing trained, measured before [W]; None: not known."""
    normalisation: Normalisation | None = left_out(None)
    """Statistics that came with the weights, by which images were normalised; None: those of the
    training part, as for all weights in earlier versions."""
    traceback: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.status in (Status.REACHED, Status.MISSED) and not self.evaluations:
            raise ValueError(f"a run that {self.status.value} the target must have evaluations")
        if (self.status is Status.REACHED) == (self.time_to_target_s is None):
            raise ValueError("time_to_target_s must be that of a run that reached the target")
        if any(number >= len(self.step_times) for number, _ in self.shape_steps):
            raise ValueError("shape_steps must be numbers of step_times")
        return self

    @property
    def energy_j(self) -> float | None:
        """Power times time to target [J]: what the training alone on its devices took them."""
        return _product(self.power_w, self.time_to_target_s)

    @property
    def flop_per_s(self) -> float | None:
        """Floating-point operations per second of the training clock, without `init_s`."""
        steps_s = self.clocks.train_s - self.init_s
        return self.flop / steps_s if self.flop and steps_s > 0 else None

    @property
    def amortised_time_to_target_s(self) -> float | None:
        """Time to target without `init_s` [s]: what it costs where those weights are at hand."""
        return None if self.time_to_target_s is None else self.time_to_target_s - self.init_s

    @property
    def reclocked(self) -> str:
        """What its first steps took by windows at the time, and take by all; empty if the same."""
        found = (each for each in self.note if each.kind is NoteKind.RECLOCKED)
        return "".join(each.change for each in found)

    def measured(self, metric: str) -> list[tuple[Evaluation, float]]:
        """Returns the evaluations that have a metric, with its value."""
        seen = [(each, each.value(metric)) for each in self.evaluations]
        return [(each, value) for each, value in seen if value is not None]

    @property
    def final(self) -> Evaluation | None:
        return self.evaluations[-1] if self.evaluations else None


def _product(factor: float | None, other: float | None) -> float | None:
    return None if factor is None or other is None else factor * other


def in_words(certificate: Any) -> Any:
    """Returns a certificate for people and scripts, who read why its runs ended in words."""
    if isinstance(certificate, list | tuple):
        return [in_words(each) for each in certificate]
    if not isinstance(certificate, dict):
        return certificate
    found = {name: in_words(value) for name, value in certificate.items()}
    with suppress(ValueError):  # It is not validated: it may come from anybody.
        if "stop_reason" in found:
            found["stop_reason"] = str(StopReason.model_validate(found["stop_reason"]))
    return found


class TrialRecord(Record):
    """One configuration of a study, finished."""

    study: str
    trial_id: str
    """Number of the trial in its study, such as `t0007`."""
    params: dict[str, Any]
    """What the search chose: `{"optimizer": "sgd", "optimizer.sgd.lr": 0.1}`."""
    proposal_reason: ProposalReason = ProposalReason()
    """Why the search chose it; of kind `none` where no search did."""
    recipe: RecordedRecipe
    """The whole resolved recipe, as YAML has it."""
    workload: RecordedWorkload
    """The whole workload, as YAML has it."""
    workload_name: str
    workload_hash: str
    """Hash over the workload and its data; rows are compared only within one."""
    space_hash: str
    evaluated_on: str = "validation"
    """Part on which the target had to hold: `validation` in a search, `test` once certified."""
    status: Status
    runs: Annotated[tuple[RunResult, ...], Field(min_length=1)]
    kind: str = "estimate"
    """`estimate` (from a search) or `certified`."""
    device: Device = Device(type="cpu", threads=0)
    cpu_threads: int = 1
    max_cotenants: Count = 0
    """Other trials that could run on the same device at the same time."""
    protocol_version: int = PROTOCOL_VERSION
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions of Python, torch, timm …, host, commit."""
    started_at: str = ""
    """UTC, ISO 8601."""
    finished_at: str = ""
    plugins: dict[str, str] = Field(default_factory=dict)
    """Source hash of each plugin that was loaded, by its name; empty without plugins."""
    certificate: Annotated[
        dict[str, Any] | None,
        PlainSerializer(lambda own, info: in_words(own) if info.context == IN_WORDS else own),
    ] = None
    """Of a certified result: all that `certificate.Certificate` holds."""
    prices: Prices = left_out({})
    """Prices of an hour by type of device, as its study file says; none: see `price_per_hour`."""

    @model_validator(mode="before")
    @classmethod
    def _rename_params(cls, data: Any) -> Any:
        # A training function's parameters are its author's: they may have any name.
        is_recipe = isinstance(data, Mapping) and "function_hash" not in data.get("workload", ())
        if is_recipe and isinstance(params := data.get("params"), Mapping):
            return {**data, "params": with_present_names(params)}
        return data

    @property
    def is_own_loop(self) -> bool:
        """Whether a training function of one's own ran; its recipe is `{"params": …}`."""
        return "function_hash" in self.workload

    @property
    def is_certified(self) -> bool:
        """Whether its runs certify it: those of a certification, none of them disturbed.

        One disturbed run, the last of three tries, is enough for no: expected times are sums over
        all runs, and to leave out one whose time is known would be to choose among the seeds.
        """
        timings = {run.timing for run in self.runs}
        return self.kind == "certified" and Timing.DISTURBED not in timings

    @property
    def verdict(self) -> str:
        """How far to believe it: `estimate`, `certified` or `NOT_CERTIFIED`."""
        return NOT_CERTIFIED if self.kind == "certified" and not self.is_certified else self.kind

    @property
    def price_per_hour(self) -> float | None:
        """Price of an hour on its devices, the study file's before the user's; None: not known."""
        price = {**own_prices(), **self.prices}.get(str(self.device.one))
        return _product(price, self.device.count)

    def cost_of(self, time_s: float | None) -> float | None:
        """Returns time / 3600 · price per hour; None: not known."""
        return _product(_product(time_s, 1 / 3600), self.price_per_hour)

    def energy_of(self, time_s: float | None) -> float | None:
        """Returns time · mean power [J]; None: not known."""
        return _product(time_s, self.power_w)

    @property
    def power_w(self) -> float | None:
        """Mean power of the runs in which it is known [W]."""
        known = [run.power_w for run in self.runs if run.power_w is not None]
        return statistics.fmean(known) if known else None

    @property
    def miss_s(self) -> float | None:
        """What a miss costs [s] where that is not a run's length: the limit, in `anytime` mode."""
        limit_s: float | None = self.workload.get("max_train_s")
        return limit_s if self.workload.get("mode") == "anytime" else None

    @property
    def time_to_target_s(self) -> float | None:
        """Time to target of the only run; None if it was missed."""
        return self.runs[-1].time_to_target_s

    @property
    def stop_reason(self) -> StopReason:
        return self.runs[-1].stop_reason


def named_settings(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a recipe's tree by the names that people know it by.

    Of a training function's recipe, `{"params": …}`, that is what it was called with.
    """
    params = recipe.get("params")
    return params if len(recipe) == 1 and isinstance(params, Mapping) else recipe


class Recommended(Record):
    """The configuration of the least expected time to target, by its runs and the search's model.

    Never simply that of the fastest run, whose time is luck in part.
    """

    intervals: ClassVar[tuple[str, ...]] = ("chance", "metric")
    """Fields that are written flat, with `_low` and `_high`."""

    study: str = ""
    trial_id: str
    """That of its fastest run."""
    run_id: str = ""
    """MLflow's run of that trial; empty where that is not known."""
    runs: Count
    """Runs to their ends, each with a seed of its own."""
    hits: Count
    """Those that met the target."""
    chance: Interval | None = None
    """Probability that another run meets the target, and 95 %; None: there is no model."""
    final: float | None = left_out(None)
    """Mean metric at the end of its runs, where their length is fixed; else None."""
    expected_s: Amount
    """Expected time to target where each miss is run again [s]."""
    metric: Interval | None = left_out(None)
    """Expected metric of another run, and 95 %, where the best is sought in a time; else None."""

    @model_validator(mode="before")
    @classmethod
    def _of_flat(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        found = dict(fields)
        for name in cls.intervals:
            if found.get(name) is not None and not isinstance(found[name], Interval):
                ends = {end: found.get(f"{name}_{end}") for end in ("low", "high")}
                found[name] = {"value": found[name], **ends}
        return found

    @model_serializer(mode="wrap")
    def _as_flat(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in dump(self).items():
            known = name in self.intervals
            found |= interval_fields(name, getattr(self, name)) if known else {name: value}
        return found

    def of_scores(self, metric_of: Callable[[float], float]) -> "Recommended":
        """Returns it with the metric itself, where a policy told its scores (`Target.score`)."""
        metric = None if self.metric is None else self.metric.map(metric_of)
        final = None if self.final is None else metric_of(self.final)
        return self.model_copy(update={"metric": metric, "final": final})

    @property
    def text(self) -> str:
        """What people read: `t0052: 5 of 6 runs met the target, …`."""
        if self.metric is not None:
            times = f"{counted(self.runs, 'run')} of {self.expected_s:.3f} s"
            if self.metric.low == self.metric.high:  # A single run, and no model.
                return f"{self.trial_id}: {times}, which ended at {self.metric:.4f}"
            return (
                f"{self.trial_id}: {times}; another is expected to end at {self.metric.text('.4f')}"
            )
        chance = f", another does with {self.chance.text(chance_text)}" if self.chance else ""
        ends = "" if self.final is None else f" and ended at {self.final:.4g} on average"
        met = f"{self.hits} of {counted(self.runs, 'run')} met the target{ends}{chance}"
        return f"{self.trial_id}: {met}; expected time with restarts {self.expected_s:.3f} s"
