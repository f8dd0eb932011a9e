"""What several figures need of a study's part; its names come from users and may hold anything."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from tune_speed.core.comparability import final_metric
from tune_speed.core.records import TrialRecord, ended_as
from tune_speed.core.targets import Target
from tune_speed.core.text import middle_cut, short_names
from tune_speed.reporting.importance import Importance, importance
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

TOOLTIP_WIDTH = 110
Item = TypeVar("Item")
_UNPRINTABLE = {"Cc", "Cs", "Cn", "Co"}


class End(NamedTuple):
    """Where a trial ended."""

    train_s: float
    metric: float
    trial: ViewedTrial


def metric_words(target: Target) -> str:
    return target.metric.replace("_", " ")


def ends_of(part: StudyPart) -> list[End]:
    """Returns where the part's trials ended; those whose metric is not known are left out."""
    metric = part.target.metric
    finals = [(t, t.record.runs[-1].final) for t in part.trials if t.record.runs]
    return [
        End(final.train_s, value, trial)
        for trial, final in finals
        if final is not None and final.step > 0 and (value := final.value(metric)) is not None
    ]


def improving(ordered: Iterable[Item], score: Callable[[Item], float]) -> list[Item]:
    """Returns those that score higher than all before them."""
    found: list[Item] = []
    for each in ordered:
        if not found or score(each) > score(found[-1]):
            found.append(each)
    return found


def reached(part: StudyPart) -> list[ViewedTrial]:
    return [trial for trial in part.trials if trial.record.time_to_target_s is not None]


def time_s_of(trial: ViewedTrial) -> float:
    time_s = trial.record.time_to_target_s
    assert time_s is not None, trial.record.trial_id
    return time_s


def outcome_of(trial: ViewedTrial, part: StudyPart) -> str:
    if trial is part.leader:
        return "leader"
    return "missed" if trial.record.time_to_target_s is None else "met target"


def estimates_of(part: StudyPart) -> dict[str, ViewedTrial]:
    """Returns by a certified trial's run id the estimate that it came from, where there is one."""
    # A study that was begun again has trial ids twice; a certificate knows the run.
    by_run = {trial.run_id: trial for trial in part.trials}
    by_id = {trial.record.trial_id: trial for trial in part.trials}
    found = {}
    for trial in part.certified:
        origin = (trial.record.certificate or {}).get("provenance", {}).get("trial_run_id", "")
        if estimate := by_run.get(origin) or by_id.get(trial.record.trial_id):
            found[trial.run_id] = estimate
    return found


# The latest trials with their importances: four figures need them, and forests take seconds.
_LATEST: list[tuple[tuple[ViewedTrial, ...], tuple[Importance, ...]]] = []
# Of a live page: that many studies, or parts of one, are looked at in turns.
MOST_LATEST = 4


def importances_of(part: StudyPart) -> tuple[Importance, ...]:
    for trials, known in _LATEST:
        if trials is part.trials:
            return known
    answers = importance([trial.record for trial in part.trials]) if part.trials else ()
    _LATEST[:] = [(part.trials, answers), *_LATEST[: MOST_LATEST - 1]]
    return answers


def names_by_weight(part: StudyPart) -> list[str]:
    weight: Counter[str] = Counter()
    for answer in importances_of(part):
        weight.update({parameter.name: parameter.value for parameter in answer.params})
    return sorted(searched_names(part), key=lambda name: -weight[name])


def searched_names(part: StudyPart) -> list[str]:
    return list(dict.fromkeys(name for trial in part.trials for name in trial.record.params))


def plain(value: Any) -> Any:
    """Returns a searched value for an axis: a finite number as it is, anything else as text."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number and not isinstance(value, bool) else str(value)


def names_in_width(names: Sequence[str], width: int) -> dict[str, str]:
    """Returns the shortest ending of each dotted name that no other name has: `sgd.lr`."""
    return {name: shortened(ending, width) for name, ending in short_names(names).items()}


class TimeUnit(NamedTuple):
    """A unit for an axis of times."""

    name: str
    length_s: float

    def label(self, axis: str) -> str:
        return f"{axis} [{self.name}]"


def time_unit(longest_s: float) -> TimeUnit:
    if longest_s < 300:
        return TimeUnit("s", 1.0)
    return TimeUnit("min", 60.0) if longest_s < 3 * 3600 else TimeUnit("h", 3600.0)


def duration(time_s: float, unit: TimeUnit | None = None) -> str:
    """Returns `1.09 s`, `12.3 min` or `4.1 h`; in `unit`, if that is given."""
    unit = unit or time_unit(time_s)
    return f"{number(time_s / unit.length_s)} {unit.name}"


class Measure(NamedTuple):
    """What a part's trials are ranked by: times to target, or the metric at the end of a time."""

    name: str
    target: Target
    unit: TimeUnit | None
    """That of an axis of times; None: it is the metric."""

    @property
    def axis(self) -> str:
        return self.name if self.unit is None else self.unit.label(self.name)

    @property
    def best(self) -> str:
        return "fastest" if self.unit is not None else "best"

    @property
    def is_falling(self) -> bool:
        """Whether less is better."""
        return self.unit is not None or self.target.mode == "min"

    def of(self, trial: ViewedTrial) -> float | None:
        """Returns a trial's value on the axis; None if it did not meet the target."""
        record = trial.record
        if record.time_to_target_s is None:
            return None
        return (
            final_metric(record)
            if self.unit is None
            else (record.time_to_target_s / self.unit.length_s)
        )

    def text(self, trial: ViewedTrial) -> str:
        value = self.of(trial)
        assert value is not None, trial.record.trial_id
        return score(value) if self.unit is None else f"{number(value)} {self.unit.name}"


def measure_of(part: StudyPart) -> Measure:
    if part.target.seeks_best:
        return Measure(metric_words(part.target), part.target, None)
    longest_s = max(map(time_s_of, reached(part)), default=0.0)
    return Measure("time to target", part.target, time_unit(longest_s))


def number(value: float) -> str:
    """Returns three significant digits, plainly: `0.034`, `1230`, `1e-4`."""
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    # Formatted twice, as `.3g` alone writes 1230 as 1.23e+03.
    return f"{float(f'{value:.3g}'):.15g}"


def score(value: float) -> str:
    """Returns a metric: four decimals, without zeros at their end; four digits below 0.001."""
    # There decimals would leave nothing of a loss.
    if 0 < abs(value) < 0.001:
        return f"{value:.4g}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def clean(text: str) -> str:
    """Returns `text` on one line, with � for what no XML file and no font can hold."""
    line = " ".join(text.split())
    return "".join("�" if unicodedata.category(c) in _UNPRINTABLE else c for c in line)


def shortened(text: str, width: int) -> str:
    """Returns `text`, clean, in `width` characters: what is too long loses its middle."""
    return middle_cut(clean(text), width)


def name_of(trial: ViewedTrial, width: int = 24) -> str:
    return shortened(trial.record.trial_id, width)


def tooltip(record: TrialRecord) -> str:
    time_s = record.time_to_target_s
    outcome = ended_as(record) if time_s is None else duration(time_s)
    text = f"{record.trial_id} · {outcome} · {describe_params(record.params)}"
    whole = clean(text)
    return whole if len(whole) <= TOOLTIP_WIDTH else whole[: TOOLTIP_WIDTH - 1] + "…"
