"""What an ablation has run, and what it found: records for JSON, without NaN or infinity."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tune_speed.core.config import flatten
from tune_speed.core.event_log import differences
from tune_speed.core.records import Record, Status, Timing
from tune_speed.experiments.ablation.design import BASE, Design
from tune_speed.experiments.ablation.effects import Estimate, Kind
from tune_speed.experiments.session import RunLog

Response = Literal["speed", "accuracy", "macro_f1"]
MEANS = ("epoch_s", "images_per_s", "accuracy", "macro_f1", "fed_ratio")
"""Metrics of a run of which an arm has the mean."""
KINDS: tuple[Kind, ...] = ("main", "interaction")
RATES = ("epoch_s", "images_per_s")
"""Those that are never below 0: their intervals are those of the logarithm."""
GAINS: Mapping[Response, str] = {
    "speed": "speed_up",
    "accuracy": "accuracy_gain",
    "macro_f1": "macro_f1_gain",
}


class Figure(Record):
    """A mean over runs, with Student's t interval: of `RATES` by logarithm, of shares by logit."""

    mean: float | None = None
    """None without a value."""
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    """Sample standard deviation; None with fewer than two values."""
    n: int = 0
    """Runs that have such a value; those that failed, diverged or ran out of memory have none."""


class Median(Record):
    """A median over runs; what did not happen within a run counts as infinite."""

    median: float | None = None
    """None: infinite with n > 0; unknown with n = 0."""
    low: float | None = None
    """Lower end of its distribution-free interval; None likewise."""
    high: float | None = None
    confidence: float = 0.0
    """What so few runs give: at least 0.95 from six on, 0 of a single one."""
    n: int = 0


class TuningPoint(Record):
    """One run with the learning rate times `factor`, from which the arm's rate was chosen."""

    factor: float
    metric: float | None
    """Target metric at the end; None if it was never evaluated."""
    status: Status
    time_to_target_s: float | None = None
    """Training clock at which the target held [s]; None: it was missed."""
    seed: int = 0


class ArmResult(Record):
    """What one arm's runs say, alone and against the base's runs with the same seeds."""

    name: str
    settings: dict[str, Any]
    not_applicable: str | None
    """Why it was not run here; None: it was, or is to be."""
    lr_factor: float | None
    """What re-tuning multiplied the learning rate by; None: it was not re-tuned."""
    is_lr_at_edge: bool | None
    """Whether that is the smallest or largest factor tried, so that a better one may lie beyond;
    None: it was not re-tuned, or with one factor only."""
    tuning: tuple[TuningPoint, ...]
    n: int = 0
    statuses: dict[Status, int] = Field(default_factory=dict)
    hits: int = 0
    success_low: float | None = None
    """Lower end of the 95 % interval of the success rate (Wilson); None without a run."""
    success_high: float | None = None
    epoch_s: Figure = Figure()
    images_per_s: Figure = Figure()
    accuracy: Figure = Figure()
    macro_f1: Figure = Figure()
    fed_ratio: Figure = Figure()
    """Share of the training time in which the loop did not wait for its next batch."""
    peak_memory_gib: Median = Median()
    """Peak of the device's allocator (CUDA), or of the process's resident memory (CPU) [GiB]."""
    time_to_target_s: Median = Median()
    expected_s: float | None = None
    """Expected time with restarts, all time spent / hits [s]; None: infinite, or n = 0."""
    expected_low_s: float | None = None
    """Lower end of its 95 % interval (fiducial) [s]; None likewise."""
    expected_high_s: float | None = None
    epochs_to_convergence: Median = Median()
    """First epoch after which accuracy hardly rises; infinite where a run ended before that."""
    speed_up: Estimate | None = None
    """Base's time per epoch / the arm's; None for the base, and without a common seed."""
    accuracy_gain: Estimate | None = None
    macro_f1_gain: Estimate | None = None
    time_to_target_factor: float | None = None
    """Base's time to target / the arm's, above 1 where the arm is sooner: geometric mean where all
    met the target, ratio of expected times with restarts where some missed; 0 where only the arm
    never met it. None: infinite, as only the base never met it; with `time_to_target_pairs` = 0,
    unknown."""
    time_to_target_low: float | None = None
    """Lower end of its 95 % interval; None: unknown."""
    time_to_target_high: float | None = None
    """Upper end of it; None: infinite, or unknown."""
    time_to_target_p: float | None = None
    """Two-sided p-value of a factor of 1; None with fewer than three pairs of runs."""
    time_to_target_p_holm: float | None = None
    """The same, corrected for the number of arms."""
    time_to_target_pairs: int = 0
    """Pairs of runs with a common seed behind the factor; 0: there is none, as for the base and
    where neither met the target."""
    time_to_target_method: str = ""
    """How factor, interval and p-value were computed, in words; empty without them."""
    notes: tuple[str, ...] = ()
    stop_reasons: tuple[str, ...] = ()
    """Why runs ended that neither met the target nor went to their end."""

    @property
    def success_rate(self) -> float | None:
        """Share of the runs that met the target; None without a run."""
        return self.hits / self.n if self.n else None

    def ends(self, field: str) -> tuple[float | None, float | None, float | None]:
        """Returns a figure and the ends of its interval; None: not known, infinity is infinite."""
        found = getattr(self, field)
        if isinstance(found, Figure):
            return (found.mean, found.low, found.high)
        if isinstance(found, Estimate):
            count, value, low, high = found.n, found.value, found.low, found.high
        elif isinstance(found, Median):
            count, value, low, high = found.n, found.median, found.low, found.high
            low = _open(low) if found.confidence else None
        elif field == "expected_s":
            low = self.expected_low_s or 0.0
            count, value, high = self.n, found, self.expected_high_s
        elif field == "success_rate":
            count, value, low, high = self.n, found, self.success_low, self.success_high
        elif field == "time_to_target_factor":
            count, value, low = self.time_to_target_pairs, found, self.time_to_target_low
            high = self.time_to_target_high
        else:
            return NOT_KNOWN
        return (_open(value), low, None if low is None else _open(high)) if count else NOT_KNOWN


NOT_KNOWN = (None, None, None)


def _open(value: float | None) -> float:
    return math.inf if value is None else value


class EffectResult(Record):
    """One contrast of arms on one response."""

    response: Response
    kind: Kind
    """`main`: with the level against without, the mean over all pairs of arms that differ by it
    alone; `interaction`: what all together give beyond what each gives alone."""
    name: str
    estimate: Estimate
    """Of speed a factor, above 1 where it is faster (an interaction: above 1 where the levels help
    one another); else a difference."""


class AblationTask(Record):
    """What is planned."""

    study: str
    part: str
    """Part of a replication, such as `cifar10`; empty: there are no parts."""
    design: Design
    seeds: int
    """Blocks: runs of each arm, as planned."""
    retune: str | None
    workload_name: str


class AblationResult(AblationTask):
    """What all arms of an ablation found."""

    workload_hash: str = ""
    metric: str
    target: float
    target_mode: str = "max"
    mode: str
    evaluated_on: str = ""
    device: str = ""
    cpu_threads: int = 0
    environment: dict[str, str] = Field(default_factory=dict)
    timing: dict[Timing, int]
    cotenants: tuple[str, ...]
    confidence: float
    """Of all intervals that do not say otherwise."""
    arms: tuple[ArmResult, ...]
    effects: tuple[EffectResult, ...]
    planned_runs: int
    """Runs, without those of the tuning and of arms that are not applicable here."""
    done_runs: int
    """As many of them as have ended, in whatever way."""

    def arm(self, name: str) -> ArmResult | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    def effects_of(self, kind: Kind) -> dict[str, dict[Response, Estimate]]:
        found: dict[str, dict[Response, Estimate]] = {}
        for effect in self.effects:
            if effect.kind == kind:
                found.setdefault(effect.name, {})[effect.response] = effect.estimate
        return found

    def effect(self, response: Response, kind: Kind, name: str) -> EffectResult | None:
        key = (response, kind, name)
        return next((e for e in self.effects if (e.response, e.kind, e.name) == key), None)


# Entries of the header that are compared by themselves.
DETAILED = ("workload", "arms", "fields")


class Tried(NamedTuple):
    """A run of the re-tuning."""

    arm: str
    factor: float
    seed: int


class Turn(NamedTuple):
    """A run of the comparison."""

    arm: str
    block: int


class AblationLedger(RunLog):
    """An open ledger: `begin` (all that fixes the arms), `tuned` and `ran`."""

    what = "an ablation"
    kinds: ClassVar = {"tuned": Tried, "ran": Turn}

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Returns how `header` differs from what was begun, a phrase each.

        What an earlier version did not write down is not known to differ. Hashes decide; the
        message names `fields`.
        """
        begun = self.header or {}
        plain = {name: header[name] for name in header if name in begun and name not in DETAILED}
        found = differences(begun, plain)
        arms, others = begun.get("arms", {}), header["arms"]
        changed = [name for name in {**arms, **others} if arms.get(name) != others.get(name)]
        is_other_task = begun.get("workload") != header["workload"]
        if not is_other_task and BASE not in changed:
            return [*found, *([f"arms {', '.join(changed)}"] if changed else [])]
        ours, theirs = (flatten(each.get("fields", {})) for each in (begun, header))
        # Where the ledger has no `fields`, only that the task differs is known.
        fields = differences(ours, {**dict.fromkeys(ours), **theirs}) if ours else []
        return [*found, *(fields or ["workload" if is_other_task else "recipe"])]
