"""Who held the record when: each trial that was the best of its board as it finished."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.comparability import board_key, final_goodness, target_of
from tune_speed.core.records import TrialRecord
from tune_speed.core.stats import finite_or_none, ranked_s
from tune_speed.core.text import device_text, moment_of, moment_s, printable
from tune_speed.reporting.leaderboard import text
from tune_speed.reporting.leaderboard.ranking import BoardFacts, facts_of, mean_metric, timed
from tune_speed.reporting.leaderboard.tables import METRIC, csv_of
from tune_speed.reporting.table import Table, escape_markdown, named_lines


class RecordHeld(BoardFacts):
    """A trial that was better than all that its board had before."""

    held_from: str
    """When the trial finished; UTC, ISO 8601."""
    held_until: str | None
    """When a better one finished; None: it holds the record still."""
    study: str
    trial_id: str
    expected_s: float
    """Expected time with restarts [s], which for a single run is its time to target."""
    expected_low_s: float | None
    """Lower end of its interval [s], see `Row.interval_of`; None: infinite."""
    expected_high_s: float | None
    """Upper end of it [s]; None: infinite."""
    interval_of: str
    """What the interval is made of: `seeds`, `step time` or `none`."""
    gained_s: float | None = None
    """Seconds by which it beat the record before; None: it was the first, or see `metric_gain`."""
    speedup: float | None = None
    """Time of the record before / this one's, above 1; None as for `gained_s`."""
    is_clear: bool | None = None
    """Whether its interval is better than that of the record before; None: it was the first."""
    mean_metric: float | None = None
    """Where the best metric within a time is sought: its runs' mean, which sets the record then."""
    mean_metric_low: float | None = None
    """Lower end of its 95 % interval; None: a single run."""
    mean_metric_high: float | None = None
    """Upper end of it."""
    metric_gain: float | None = None
    """By how much its metric is better than that of the record before; None: it was the first."""
    params: dict[str, Any]
    """What the search chose."""


def record_history(records: Iterable[TrialRecord]) -> tuple[RecordHeld, ...]:
    """Returns the records of each board, in the order in which they were set.

    A record is set by a trial that has a rank and is strictly better than all that finished before
    it, of several at the same moment by the best. Trials that do not say when they finished are
    left out.
    """
    history: list[RecordHeld] = []
    ranked = [
        (board_key(r), finished, loss, r.study, r.trial_id, r)
        for r in records
        if ranked_s(r) is not None and (finished := moment_of(r.finished_at)) is not None
        if (loss := _loss(r)) is not None
    ]
    # The key leaves the record out: records have no order.
    least, last = math.inf, None
    for key, _, loss, *_, record in sorted(ranked, key=lambda each: each[:-1]):
        before, last = history[-1] if key == last else None, key
        if before is None or loss < least:
            if before is not None:
                history[-1] = before.model_copy(update={"held_until": record.finished_at})
            history.append(_held(record, before))
            least = loss
    return tuple(history)


def boards_of(history: Iterable[RecordHeld]) -> list[list[RecordHeld]]:
    return [list(held) for _, held in groupby(history, lambda held: held.key)]


def _loss(record: TrialRecord) -> float | None:
    """Returns what a record has less of than all before: time [s], or goodness negated."""
    if target_of(record.workload).seeks_best:
        return -final_goodness(record)
    return timed(record).expected_s


def _held(record: TrialRecord, before: RecordHeld | None) -> RecordHeld:
    time = timed(record)
    held = RecordHeld(
        **facts_of(record),
        held_from=record.finished_at,
        held_until=None,
        study=record.study,
        trial_id=record.trial_id,
        expected_s=time.expected_s,
        expected_low_s=finite_or_none(time.low_s),
        expected_high_s=finite_or_none(time.high_s),
        interval_of=time.interval_of,
        params=record.params,
        **mean_metric(record.runs, target_of(record.workload)),
    )
    return held if before is None else held.model_copy(update=_gain(held, before))


def _gain(held: RecordHeld, before: RecordHeld) -> dict[str, Any]:
    if held.mean_metric is None or before.mean_metric is None:
        high_s = math.inf if held.expected_high_s is None else held.expected_high_s
        return {
            "gained_s": before.expected_s - held.expected_s,
            "speedup": before.expected_s / held.expected_s if held.expected_s else None,
            "is_clear": high_s < (before.expected_low_s or 0.0),
        }
    worse, better = (before, held) if held.target_mode == "max" else (held, before)
    low, high = better.mean_metric_low, worse.mean_metric_high
    return {
        "metric_gain": abs(held.mean_metric - before.mean_metric),
        "is_clear": low is not None and high is not None and low > high,
    }


CAPTION = (
    "The best so far, by the expected time with restarts, or by the metric where the best within a"
    " time is sought; equals set no record. ? after a gain: it may be luck, as intervals overlap or"
    " there are none."
)
LEFT = ("held from (UTC)", "study/trial", "searched")


def history_renderable(history: Sequence[RecordHeld]) -> RenderableType:
    if not history:
        return Text(text.NO_TRIALS)
    parts: list[RenderableType] = []
    for board in boards_of(history):
        rows = [_cells(held) for held in board]
        shown = [name for name in rows[0] if name not in ("gained [s]", "searched")]
        table = Table.of_columns({name: [row[name] for row in rows] for name in shown}, left=LEFT)
        chosen = named_lines((row["study/trial"], row["searched"]) for row in rows)
        parts += [Text(printable(_title(board)), style="italic"), table, Text(), chosen, Text()]
    return Group(*parts, Text(CAPTION, style="dim"))


def history_csv(history: Sequence[RecordHeld]) -> str:
    """Returns one line a record under the names of its fields; the parameters are JSON."""
    return csv_of([*RecordHeld.model_fields], (held.model_dump(mode="json") for held in history))


def history_markdown(history: Sequence[RecordHeld]) -> str:
    parts = []
    for board in boards_of(history):
        table = Table.of_rows([_cells(held) for held in board]).markdown()
        parts += [f"**{escape_markdown(_title(board))}**", "", table, ""]
    return "\n".join([*parts, CAPTION if parts else text.NO_TRIALS, ""])


def _title(board: Sequence[RecordHeld]) -> str:
    held = board[0]
    what = f"{held.workload}, {text.KINDS[held.kind]}, the record over time"
    return f"{what}: {held.goal}, {held.mode}, on {device_text(held.device)}"


def _cells(held: RecordHeld) -> dict[str, str]:
    return {
        "held from (UTC)": held.held_from[:16].replace("T", " "),
        "for": _span(held),
        **(_time_cells(held) if held.within_s is None else _metric_cells(held)),
        "study/trial": f"{held.study}/{held.trial_id}",
        "searched": text.describe_params(held.params),
    }


def _time_cells(held: RecordHeld) -> dict[str, str]:
    unsure = "" if held.is_clear else "?"
    return {
        "time [s]": text.interval_text(held.expected_s, held.expected_low_s, held.expected_high_s),
        "gained [s]": "–" if held.gained_s is None else f"{held.gained_s:.2f}",
        "faster by": "–" if held.speedup is None else f"{held.speedup:.2f}×{unsure}",
    }


def _metric_cells(held: RecordHeld) -> dict[str, str]:
    unsure = "" if held.is_clear else "?"
    return {
        METRIC: text.metric_text(held.mean_metric, held.mean_metric_low, held.mean_metric_high),
        "better by": "–" if held.metric_gain is None else f"{held.metric_gain:.4f}{unsure}",
    }


def _span(held: RecordHeld) -> str:
    if held.held_until is None:
        return "to date"
    seconds = round(moment_s(held.held_until) - moment_s(held.held_from))
    sizes = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    parts = [(name, seconds // size) for name, size in sizes.items() if seconds >= size]
    if not parts:
        return "0 s"
    name, count = parts[0]
    smaller = {"d": "h", "h": "min"}.get(name)
    rest = (seconds - count * sizes[name]) // sizes[smaller] if smaller else 0
    return f"{count} {name} {rest} {smaller}" if rest else f"{count} {name}"
