"""Columns of leaderboards for people: the text of a cell, and its heading in each form."""

from collections.abc import Callable
from typing import NamedTuple

from tune_speed.core.text import ABSENT, factor
from tune_speed.reporting.leaderboard.ranking import Row
from tune_speed.reporting.leaderboard.text import describe_params, interval_text
from tune_speed.tracking.columns import COLUMNS


class Shown(NamedTuple):
    """A column for people; programs have all fields of `Row`, unrounded."""

    text: Callable[[Row], str]
    narrow: str
    """Heading in a terminal and in a notebook."""
    page: str = ""
    """Heading on a page."""
    is_left: bool = False
    """Whether it has words, which are flush left."""


def faster_text(row: Row) -> str:
    """Returns `1.25×, p = 0.02`: how much faster than its rival a certified row is; how sure."""
    if row.rival is None or row.p_value is None:
        return ABSENT
    return f"{factor(row.speedup)}, p = {row.p_value:.2g}"


def _expected(row: Row) -> str:
    return interval_text(row.expected_s, row.expected_low_s, row.expected_high_s)


def _search_cost(row: Row) -> str:
    if row.study_trials is None or row.study_device_s is None:
        return ABSENT
    return f"{row.study_trials}, {row.study_device_s:.0f} s"


def _plain(name: str, page: str = "", *, is_left: bool = False) -> Shown:
    """Returns a column of results as its definition formats it."""
    column = COLUMNS[name]
    return Shown(lambda row: column.text(getattr(row, name)), column.heading or name, page, is_left)


# The second is the first without the rival's name, which is then below the table.
FASTER, FACTOR = "faster than", "factor, p"
# The same figures; of a single run, the expected time is its time.
TIME, EXPECTED = "time (interval)", "expected_s (95 %)"
NAME, SEARCH = "study/trial", "search: trials, device"

SHOWN: dict[str, Shown] = {
    "rank": Shown(lambda row: row.place, "rank", "Rank"),
    "time_to_target_s": _plain("time_to_target_s"),
    "median (interval)": Shown(
        lambda row: interval_text(row.time_to_target_s, row.median_low_s, row.median_high_s),
        "median [s]",
        "Median [s] (interval)",
    ),
    TIME: Shown(_expected, "time to target [s]", "Time to target [s] (interval)"),
    EXPECTED: Shown(_expected, "expected [s]", "Expected with restarts [s] (95 %)"),
    "hits/n": Shown(lambda row: f"{row.hits}/{row.n}", "hits", "Met / seeds"),
    "final": _plain("final_metric", "Final"),
    "status": _plain("status"),
    "steps": _plain("steps", "Steps"),
    "images_per_s": _plain("images_per_s", "Images/s"),
    "peak_memory_gib": _plain("peak_memory_gib", "Memory [GiB]"),
    "timing": _plain("timing", "Clock", is_left=True),
    FASTER: Shown(
        lambda row: faster_text(row) + (f", {row.rival}" if row.rival else ""),
        FASTER,
        "Faster than",
        is_left=True,
    ),
    FACTOR: Shown(faster_text, "vs rival"),
    SEARCH: Shown(_search_cost, SEARCH, "Search: trials, device"),
    NAME: Shown(lambda row: row.name, NAME, "Trial", is_left=True),
    "searched": Shown(lambda row: describe_params(row.params), "searched", is_left=True),
}
"""All columns by their headings in Markdown."""
MARKDOWN = tuple(name for name in SHOWN if name not in (TIME, FACTOR))

_ESTIMATE = ("rank", TIME, "final", "status", "steps", "images_per_s")
_CERTIFIED = ("rank", EXPECTED, "median (interval)", "hits/n", "final", "status")
TERMINAL = {
    "estimate": (
        (*_ESTIMATE, "peak_memory_gib", "timing", NAME),
        (*_ESTIMATE, "timing", NAME),
        (*_ESTIMATE, NAME),
        (*_ESTIMATE[:-1], NAME),
        (*_ESTIMATE[:-2], NAME),
    ),
    "certified": (
        (*_CERTIFIED, FASTER, NAME),
        (*_CERTIFIED, FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", "final", "status", FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", "status", FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", NAME),
    ),
}
"""Columns of a terminal by kind of board, the widest set first."""
PAGE = {
    "estimate": (
        *("rank", NAME, TIME, "final", "steps", "images_per_s", "peak_memory_gib", "timing"),
        SEARCH,
    ),
    "certified": (
        *("rank", NAME, EXPECTED, "median (interval)", "hits/n", "final", FASTER, SEARCH),
    ),
}
"""Columns of a page by kind of board; SEARCH only where the board has several studies."""
