"""Numbers, times, names and options for people, and untrusted texts made fit for a terminal."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

ABSENT = "–"
"""A number that is not there."""
# A time that is never reached.
INFINITE = "∞"
_MARK = "\N{REPLACEMENT CHARACTER}"
_LINES = re.compile(r"[^\n\t]+")
KEYWORDS: ContextVar[Mapping[str, Any] | None] = ContextVar("keywords", default=None)
"""The keywords of the present call from Python; None while a command runs."""
SET = "--set "
"""Begins the place of a value that was set by hand, see `Problem.file`."""


def significant(value: float | None, digits: int = 4, *, none: str = ABSENT) -> str:
    """Returns so many significant digits, without zeros at the end: `0.1235`, `1.234e+06`."""
    return none if value is None else f"{value:.{digits}g}"


def fixed(value: float | None, digits: int, *, none: str = ABSENT) -> str:
    return none if value is None else f"{value:.{digits}f}"


def compact(value: float | None, *, none: str = ABSENT) -> str:
    """Returns three digits, or all those before the point: `0.812`, `1.20`, `84.3`, `1,234`."""
    if value is None:
        return none
    if abs(value) >= 100:
        return f"{value:,.0f}"
    # `#` keeps zeros at the end, so that 1.20 and 1.21 line up in a column.
    return f"{value:#.3g}".rstrip(".") if value else "0"


def percent(share: float | None, digits: int = 3, *, none: str = ABSENT) -> str:
    return none if share is None else f"{100 * share:.{digits}g} %"


def factor(ratio: float | None, *, none: str = ABSENT) -> str:
    return none if ratio is None else f"{ratio:.2f}×"


def device_text(device: object) -> str:
    """Returns a device's name in words; records have `cpu (1 threads, …)`, which stays."""
    return str(device).replace("(1 threads,", "(1 thread,")


def recorded_device(part: str) -> str:
    """Returns a part of a device's name, as `device_text` has it, as records have it."""
    return part.replace("(1 thread,", "(1 threads,")


def seconds(time_s: float | None, digits: int = 3, *, none: str = INFINITE) -> str:
    if time_s is None or math.isinf(time_s):
        return none
    return f"{time_s:.{digits}f} s"


def duration(time_s: float) -> str:
    """Returns a time in whole seconds or minutes: `5 s`, `3 min 5 s` or `2 h 10 min`."""
    minutes, rest = divmod(max(0, round(time_s)), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def interval(low: float | None, high: float | None, digits: int = 2) -> str:
    """Returns `1.18–1.24`; an end that is None or infinite is `∞`."""
    ends = (INFINITE if x is None or math.isinf(x) else f"{x:.{digits}f}" for x in (low, high))
    return "–".join(ends)


@dataclass(frozen=True)
class Interval:
    """A figure between the ends of its interval, in the unit of the field that holds it."""

    value: float
    low: float | None = None
    """Lower end; None: not known."""
    high: float | None = None

    def __float__(self) -> float:
        return self.value

    def __format__(self, form: str) -> str:
        return format(self.value, form)

    @property
    def ends(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def map(self, function: Callable[[float], float]) -> "Interval":
        """Returns the interval of a rising or falling function of the figure."""
        return Interval(function(self.value), *sorted(map(function, self.ends or ())))

    def text(self, form: str | Callable[[float], str], *, to: str = " to ") -> str:
        """Returns `0.70 (0.40 to 0.90)` with `.2f`; the value alone without both ends."""
        shown = (lambda value: format(value, form)) if isinstance(form, str) else form
        ends = "" if self.ends is None else f" ({to.join(map(shown, self.ends))})"
        return f"{shown(self.value)}{ends}"


def chance_text(chance: float) -> str:
    """Returns `83%`; `>99%` and `<1%` where rounding would call a chance certain."""
    if chance >= 0.995:
        return ">99%"
    return "<1%" if chance < 0.005 else f"{chance:.0%}"


def interval_fields(name: str, found: Interval | None) -> dict[str, float | None]:
    """Returns an interval as records and rows hold it: `name`, `name_low` and `name_high`."""
    names = (name, f"{name}_low", f"{name}_high")
    return dict.fromkeys(names) if found is None else dict(zip(names, astuple(found), strict=True))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Returns for each dotted name its shortest ending that no other name has: `lr`, `sgd.lr`."""
    endings = {
        name: [".".join(name.split(".")[-parts:]) for parts in range(1, name.count(".") + 2)]
        for name in names
    }
    counts = Counter(ending for each in endings.values() for ending in each)
    return {name: next((e for e in each if counts[e] == 1), name) for name, each in endings.items()}


def first_line(text: str, *, most: int | None = None) -> str:
    """Returns the first line that is not blank, in `most` characters at most; "" without one."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:most]


def middle_cut(text: str, width: int) -> str:
    """Returns `text` in `width` characters at most: what is too long loses its middle to `…`."""
    if len(text) <= width:
        return text
    kept = width - 1
    return text[: (kept + 1) // 2] + "…" + text[len(text) - kept // 2 :]


def words_cut(text: str, width: int) -> str:
    """Returns `text` in at most `width` characters: if too long, it loses its last words to `…`."""
    if len(text) <= width:
        return text
    return f"{text[: width - 1].rpartition(' ')[0]} …"[:width]


def printable(text: str) -> str:
    """Returns `text` with a mark for each character that a terminal obeys or YAML refuses."""
    # A terminal moves, colours, links, retitles its window or reverses a line; and names, reasons
    # and tracebacks come from study files, data sets and MLflow servers of anybody.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _MARK for c in text)


def printable_lines(text: str) -> str:
    """Returns `text` as `printable` does, but leaves line feeds and tabs."""
    return _LINES.sub(lambda match: printable(match[0]), text)


def moment_of(text: str) -> datetime | None:
    """Returns the moment of an ISO 8601 text in UTC, also of one without a zone; None: none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    # OverflowError: a time zone that leads out of the years 1 to 9999.
    except (ValueError, OverflowError):
        return None


def moment_s(text: str) -> float:
    """Returns the seconds since 1970 of a moment; 0.0 if `text` says none, which is long ago."""
    moment = moment_of(text)
    return 0.0 if moment is None else moment.timestamp()


def switch(name: str) -> str:
    """Returns `--from-mlflow`, or `from_mlflow=True`."""
    return f"--{name}" if KEYWORDS.get() is None else f"{name.replace('-', '_')}=True"


def option(name: str) -> str:
    """Returns `--trials`, or `trials=`."""
    return f"--{name}" if KEYWORDS.get() is None else f"{name}="


def setting(path: str, value: str | float) -> str:
    """Returns `--set epochs=VALUE`, or `set={"epochs": VALUE}`."""
    if KEYWORDS.get() is None:
        return f"{SET}{path}={value}"
    is_bare = not isinstance(value, str) or value.isupper()
    shown = value if is_bare else f'"{value}"'
    return f"study={shown}" if path == "study" else f'set={{"{path}": {shown}}}'


def shown_place(file: str) -> str:
    """Returns a file's name, or how the value was set that is meant."""
    given = KEYWORDS.get()
    if given is None or not file.startswith(SET):
        return file
    path, _, value = file.removeprefix(SET).partition("=")
    name = path.rpartition(".")[2]
    return f'set={{"{path}": {value}}}' if given.get(name) is None else f"{name}={value}"
