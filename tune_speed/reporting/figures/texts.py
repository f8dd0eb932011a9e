"""Names and numbers as figures show them; names come from users and may hold anything."""

import unicodedata
from typing import NamedTuple

from tune_speed.core.records import TrialRecord
from tune_speed.core.text import middle_cut
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.study.view import ViewedTrial

TOOLTIP_WIDTH = 110
_UNPRINTABLE = {"Cc", "Cs", "Cn", "Co"}


class TimeUnit(NamedTuple):
    """A unit for an axis of times."""

    name: str
    length_s: float

    def label(self, axis: str) -> str:
        """Returns `training time [s]`."""
        return f"{axis} [{self.name}]"


def time_unit(longest_s: float) -> TimeUnit:
    """Returns the unit in which `longest_s` is a number that people read at a glance."""
    if longest_s < 300:
        return TimeUnit("s", 1.0)
    return TimeUnit("min", 60.0) if longest_s < 3 * 3600 else TimeUnit("h", 3600.0)


def duration(time_s: float, unit: TimeUnit | None = None) -> str:
    """Returns `1.09 s`, `12.3 min` or `4.1 h`; in `unit`, if that is given."""
    unit = unit or time_unit(time_s)
    return f"{number(time_s / unit.length_s)} {unit.name}"


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
    """Returns a trial's id in `width` characters."""
    return shortened(trial.record.trial_id, width)


def tooltip(record: TrialRecord) -> str:
    """Returns what a trial's tooltip says: its id, time and parameters in short."""
    time_s = record.time_to_target_s
    outcome = record.status.value if time_s is None else duration(time_s)
    text = f"{record.trial_id} · {outcome} · {describe_params(record.params)}"
    whole = clean(text)
    return whole if len(whole) <= TOOLTIP_WIDTH else whole[: TOOLTIP_WIDTH - 1] + "…"
