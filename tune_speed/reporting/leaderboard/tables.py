"""Leaderboards for people, column by column, as tables, JSON, CSV and Markdown."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core.text import (
    ABSENT,
    chance_text,
    counted,
    device_text,
    factor,
    printable,
    significant,
)
from tune_speed.reporting.leaderboard.ranking import Board, BoardFacts, Row
from tune_speed.reporting.leaderboard.text import (
    NO_TRIALS,
    caption,
    describe_params,
    interval_text,
    metric_text,
    title,
)
from tune_speed.reporting.table import (
    Column,
    Table,
    escape_markdown,
    fitting,
    html_line,
    named_lines,
)
from tune_speed.tracking.columns import COLUMNS


class Shown(NamedTuple):
    """A column for people; programs have all fields of `Row`, unrounded."""

    text: Callable[[Row], str]
    narrow: str
    page: str = ""
    is_left: bool = False
    """Whether it has words, which are flush left."""


def faster_text(row: Row) -> str:
    """Returns `1.25×, p = 0.02`: how much faster than its rival a certified row is; how sure."""
    if row.rival is None or row.p_value is None:
        return ABSENT
    gain = factor(row.speedup) if row.metric_gain is None else f"{row.metric_gain:+.4f}"
    return f"{gain}, p = {row.p_value:.2g}"


def _than_rival(row: Row) -> str:
    return faster_text(row) + (f", {row.rival}" if row.rival else "")


def _search_cost(row: Row) -> str:
    if row.study_trials is None or row.study_device_s is None:
        return ABSENT
    return f"{row.study_trials}, {row.study_device_s:.0f} s"


def _plain(name: str, page: str = "", *, is_left: bool = False) -> Shown:
    column = COLUMNS[name]
    return Shown(lambda row: column.text(getattr(row, name)), column.heading or name, page, is_left)


# The second is the first without the rival's name, which is then below the table.
FASTER, FACTOR = "faster than", "factor, p"
EXPECTED, METRIC, BETTER = "expected_s (95 %)", "metric (95 %)", "better by"
COST, ENERGY, SCALING, DEVICE = "expected cost", "expected energy [J]", "scaling", "device"
IF_KNOWN = (COST, ENERGY, SCALING, DEVICE)
NAME, SEARCH = "study/trial", "search: trials, device"

SHOWN: dict[str, Shown] = {
    "rank": Shown(lambda row: row.place, "rank", "Rank"),
    "time_to_target_s": Shown(
        lambda row: COLUMNS["time_to_target_s"].text(row.time_to_target_s),
        "fastest [s]",
        "Fastest run [s]",
    ),
    "median (interval)": Shown(
        lambda row: interval_text(row.time_to_target_s, row.median_low_s, row.median_high_s),
        "median [s]",
        "Median [s] (interval)",
    ),
    EXPECTED: Shown(
        lambda row: interval_text(row.expected_s, row.expected_low_s, row.expected_high_s),
        "expected [s]",
        "Expected with restarts [s] (95 %)",
    ),
    METRIC: Shown(
        lambda row: metric_text(row.mean_metric, row.mean_metric_low, row.mean_metric_high),
        "metric (95 %)",
        "Metric at the end (95 %)",
    ),
    "train_s": Shown(
        lambda row: COLUMNS["time_to_target_s"].text(row.time_to_target_s), "time [s]", "Time [s]"
    ),
    COST: Shown(lambda row: significant(row.expected_cost), "cost", "Expected cost"),
    ENERGY: Shown(lambda row: significant(row.expected_energy_j), "energy [J]", "Energy [J]"),
    SCALING: Shown(
        lambda row: ABSENT if row.scaling is None else f"{row.scaling:.0%}", "scaling", "Scaling"
    ),
    DEVICE: Shown(lambda row: device_text(row.devices), "device", "Device", is_left=True),
    "chance": Shown(
        lambda row: ABSENT if row.chance is None else chance_text(row.chance), "chance", "Chance"
    ),
    "hits/n": Shown(lambda row: f"{row.hits}/{row.n}", "met", "Met / runs"),
    "final": _plain("final_metric", "Final"),
    "status": Shown(lambda row: row.ended, "status", "Ended"),
    "steps": _plain("steps", "Steps"),
    "images_per_s": _plain("images_per_s", "Images/s"),
    "peak_memory_gib": _plain("peak_memory_gib", "Memory [GiB]"),
    "flop_per_s": _plain("flop_per_s", "FLOP/s"),
    "timing": _plain("timing", "Clock", is_left=True),
    "reclocked": _plain("reclocked", "Re-clocked", is_left=True),
    FASTER: Shown(_than_rival, FASTER, "Faster than", is_left=True),
    FACTOR: Shown(faster_text, "vs rival"),
    BETTER: Shown(_than_rival, BETTER, "Better by", is_left=True),
    SEARCH: Shown(_search_cost, SEARCH, "Search: trials, device"),
    NAME: Shown(lambda row: row.name, NAME, "Trial", is_left=True),
    "searched": Shown(lambda row: describe_params(row.params), "searched", is_left=True),
}
"""All columns by their headings in Markdown."""
WITHIN = {
    **{EXPECTED: METRIC, FASTER: BETTER},
    **{"time_to_target_s": "train_s", "median (interval)": "train_s"},
}
"""Columns where the best metric within a time is sought, in place of those of a time to target."""
MARKDOWN = tuple(name for name in SHOWN if name not in (FACTOR, *WITHIN.values()))

_ESTIMATE = ("rank", EXPECTED, *IF_KNOWN, "chance", "hits/n", "status")
_OF_FASTEST = (
    *("time_to_target_s", "final", "steps", "images_per_s", "timing", "peak_memory_gib"),
    "flop_per_s",
)
"""In a terminal; how many were re-clocked is said there below the table."""
_CERTIFIED = (
    "rank",
    EXPECTED,
    *IF_KNOWN,
    "median (interval)",
    "hits/n",
    "final",
    "status",
    "timing",
)
TERMINAL = {
    "estimate": tuple(
        (*_ESTIMATE, *_OF_FASTEST[:count], NAME) for count in range(len(_OF_FASTEST), -1, -1)
    ),
    "certified": (
        (*_CERTIFIED, FASTER, NAME),
        (*_CERTIFIED, FACTOR, NAME),
        ("rank", EXPECTED, *IF_KNOWN, "hits/n", "final", "status", "timing", FACTOR, NAME),
        ("rank", EXPECTED, *IF_KNOWN, "hits/n", "status", "timing", FACTOR, NAME),
        ("rank", EXPECTED, *IF_KNOWN, "hits/n", "timing", NAME),
    ),
}
"""Columns of a terminal by kind of board, the widest set first."""
PAGE = {
    "estimate": (
        *("rank", NAME, EXPECTED, *IF_KNOWN, "chance", "hits/n", *_OF_FASTEST, "reclocked"),
        SEARCH,
    ),
    "certified": (
        *("rank", NAME, EXPECTED, *IF_KNOWN, "median (interval)", "hits/n", "final", "status"),
        *("timing", FASTER, SEARCH),
    ),
}
"""Columns of a page by kind of board; SEARCH only where the board has several studies."""


def _none_met(board: Board) -> str:
    return f"{title(board)}: none of {counted(board.trials, 'trial')} {board.met}."


def as_renderable(boards: Sequence[Board]) -> RenderableType:
    """Returns tables for a terminal, whose names are neither markup nor control characters."""
    if not boards:
        return Text(NO_TRIALS)
    parts: list[RenderableType] = []
    for board in boards:
        if not board.rows:
            parts.append(Text(printable(_none_met(board))))
            continue
        below = Text(printable(caption(board)), style="dim")
        heading = Text(printable(title(board)), style="italic")
        parts += [heading, _Rows(board), Text(), below, Text()]
    return Group(*parts)


@dataclass(frozen=True)
class _Rows:
    """The rows of a board, in the widest layout that fits, and what each row chose below it."""

    # What was searched has lines of its own: as a column it would leave no room for the figures.

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layouts = TERMINAL[self.board.kind]
        tables = [_table(self.board, names) for names in layouts]
        chosen = fitting(tables, console, options)
        yield tables[chosen]
        yield Text()
        # Where the column of rivals has no room, their names are in the lines below.
        with_rivals = FASTER not in layouts[chosen]
        ranks = _aligned([row.place for row in self.board.rows])
        lines = (_line(row, self.board, with_rivals=with_rivals) for row in self.board.rows)
        yield named_lines(zip(ranks, lines, strict=True))


def told(board: Board, names: Sequence[str]) -> list[str]:
    """Returns the names of those columns that say something on a board."""
    says_chance = any(row.chance is not None for row in board.rows)
    is_once = not says_chance and all(row.n == 1 for row in board.rows)
    says = {
        "status": any(row.rank is None for row in board.rows),
        "chance": says_chance,
        # Of a single run of which nothing else is known, the expected time is its time.
        "hits/n": not is_once,
        "time_to_target_s": not is_once,
        "timing": board.kind != "certified" or any(row.is_disturbed for row in board.rows),
        "reclocked": any(row.reclocked for row in board.rows),
        COST: any(row.expected_cost is not None for row in board.rows),
        ENERGY: any(row.expected_energy_j is not None for row in board.rows),
        SCALING: any(row.scaling is not None for row in board.rows),
        DEVICE: len({row.devices for row in board.rows}) > 1,
    }
    if board.within_s is not None:
        says |= {"hits/n": True, "chance": False, "train_s": True, "final": False}
        names = [WITHIN.get(name, name) for name in names]
    return [name for name in names if says.get(name, True)]


def _table(board: Board, names: Sequence[str]) -> Table:
    shown = [SHOWN[name] for name in told(board, names)]
    columns = [Column(each.narrow, each.is_left or each.narrow == "rank") for each in shown]
    ranks = _aligned([row.place for row in board.rows])
    rows = [
        [rank if each.narrow == "rank" else each.text(row) for each in shown]
        for rank, row in zip(ranks, board.rows, strict=True)
    ]
    return Table(columns, rows)


def _aligned(ranks: Sequence[str]) -> list[str]:
    return [f"{rank.removesuffix('='):>3}{'=' if rank.endswith('=') else ''}" for rank in ranks]


def _line(row: Row, board: Board, *, with_rivals: bool) -> str:
    studies = {row.study for row in board.rows}
    name = row.name if len(studies) > 1 else row.trial_id
    parts = [f"{name}: {describe_params(row.params)}"]
    if with_rivals and row.rival is not None:
        parts.append(f"rival {row.rival}")
    if (len(studies) > 1 or board.kind == "certified") and row.study_trials is not None:
        trials = counted(row.study_trials, "trial")
        parts.append(f"found in {trials}, {row.study_device_s:.0f} device-seconds")
    return "; ".join(parts)


def boards_html(boards: Sequence[Board]) -> Markup:
    if not boards:
        return html_line(NO_TRIALS)
    parts = []
    for board in boards:
        if not board.rows:
            parts.append(html_line(_none_met(board)))
            continue
        shown = [SHOWN[name] for name in (*told(board, TERMINAL[board.kind][0]), "searched")]
        rows = [[each.text(row) for each in shown] for row in board.rows]
        table = Table((Column(each.narrow, each.is_left) for each in shown), rows)
        parts += [html_line(title(board), tag="h4"), table.html(), html_line(caption(board))]
    return Markup("").join(parts)


def as_json(boards: Sequence[BoardFacts]) -> str:
    """Returns boards, or the records of a history, as JSON, figures unrounded."""
    return json.dumps([board.model_dump(mode="json") for board in boards], indent=2)


def as_csv(boards: Sequence[Board]) -> str:
    """Returns one line a row, the board's fields first; the searched parameters are JSON."""
    other = {"rows", "recommended", "range_ends"}
    names = [*(name for name in Board.model_fields if name not in other), *Row.model_fields]
    rows = (
        {**board.model_dump(mode="json", exclude=other), **row.model_dump(mode="json")}
        for board in boards
        for row in board.rows
    )
    return csv_of(names, rows)


def csv_of(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns one line a row, of these fields of it; the searched parameters are JSON."""
    texts = ({**row, "params": json.dumps(row["params"], sort_keys=True)} for row in rows)
    return Table(map(Column, names), ([row[name] for name in names] for row in texts)).csv()


def as_markdown(boards: Sequence[Board]) -> str:
    lines = []
    for board in boards:
        if board.within_s is not None:
            names = told(board, MARKDOWN)
        else:
            left_out = {*IF_KNOWN} - {*told(board, IF_KNOWN)}
            names = [name for name in MARKDOWN if name not in left_out]
        columns = {name: [SHOWN[name].text(row) for row in board.rows] for name in names}
        lines += [f"**{escape_markdown(title(board))}**", "", Table.of_columns(columns).markdown()]
        lines += ["", escape_markdown(caption(board)), ""]
    return "\n".join(lines)
