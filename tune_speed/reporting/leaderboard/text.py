"""Leaderboards in words: titles, captions, figures and what was searched."""

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from tune_speed.core.records import CLOCK_WORDS, NOT_CERTIFIED, Timing, TrialRecord
from tune_speed.core.text import INFINITE, counted, device_text, fixed, interval, short_names
from tune_speed.core.words import NoteKind
from tune_speed.reporting.leaderboard.ranking import Board

NO_TRIALS = "No trial met its target yet."


def describe_params(params: Mapping[str, Any]) -> str:
    """Returns `optimizer=sgd lr=0.123 …`: the shortest names that are unique, four digits."""
    names = short_names(params)
    parts = (
        f"{names[name]}={value:.4g}" if isinstance(value, float) else f"{names[name]}={value}"
        for name, value in params.items()
    )
    return " ".join(parts) or "(nothing searched)"


def interval_text(value_s: float | None, low_s: float | None, high_s: float | None) -> str:
    """Returns `1.19 (1.18–1.24)`, `1.19` where the interval says nothing, `∞` for None."""
    value = fixed(value_s, 2, none=INFINITE)
    is_unknown = not low_s and (high_s is None or math.isinf(high_s))
    has_interval = low_s != high_s and not is_unknown
    return f"{value} ({interval(low_s, high_s)})" if has_interval else value


def metric_text(value: float | None, low: float | None, high: float | None) -> str:
    """Returns `0.9712 (0.9650–0.9760)`; without an interval, the value alone; `–` for None."""
    ends = "" if low is None or high is None else f" ({interval(low, high, 4)})"
    return f"{fixed(value, 4)}{ends}"


KINDS = {"estimate": "estimates", "certified": "certified"}


def kind_text(board: Board) -> str:
    """Returns `estimates`, `certified`, or `not certified` where all was disturbed."""
    is_refuted = {row.is_disturbed for row in board.rows} == {True}
    return f"{'not ' * is_refuted}{KINDS[board.kind]}"


def why_not_certified(records: Iterable[TrialRecord]) -> str:
    """Returns why a study's certified records do not count, and what to do; empty if all do."""
    refused = [record for record in records if record.verdict == NOT_CERTIFIED]
    if not refused:
        return ""
    runs = [run for record in refused for run in record.runs]
    disturbed = [run for run in runs if run.timing == Timing.DISTURBED]
    notes = (note for run in disturbed for note in run.note if note.kind is NoteKind.DISTURBED)
    shares = {f"{100 * float(note.figures['share']):.0f}" for note in notes}
    ends = "–".join(dict.fromkeys((min(shares, key=int), max(shares, key=int)))) if shares else ""
    many = f"{len(disturbed)} of {counted(len(runs), 'run')}"
    took = f" (they took {ends} % of the core)" if ends else ""
    command = f"tune-speed certify {shlex.quote(refused[0].study)} --again"
    return (
        f"Not certified: other programs disturbed {many}{took}. Free the machine, or certify where"
        f" it is idle: {command}"
    )


def title(board: Board) -> str:
    where = f", where {board.where}" if board.where else ""
    return (
        f"{board.workload}, {kind_text(board)}: {board.goal}, {board.mode}, on"
        f" {device_text(board.device)}{where}"
    )


_ORDERS = {
    "time": "",
    "cost": "Ranked by expected cost: expected time × price per hour of all devices. ",
    "energy": "Ranked by expected energy: expected time × mean power of all devices. ",
}

_FIGURES = ("the metric is the mean of its runs", "expected_s is the expected time with restarts")


def caption(board: Board) -> str:
    trust = {
        "estimate": f"Estimates from a search; {_clocks(board)}",
        "certified": f"{kind_text(board).capitalize()}: fresh seeds, test part, the device"
        f" reserved; {_FIGURES[board.within_s is None]}, with its 95 % interval",
    }[board.kind]
    if count := sum(row.is_disturbed for row in board.rows):
        trust += f". Other programs disturbed runs of {counted(count, 'row')}, not certified"
    if changed := sum(bool(row.reclocked) for row in board.rows):
        trust += f". Re-clocked by all windows, as `show` says: {counted(changed, 'row')}"
    ranked = sum(row.rank is not None for row in board.rows)
    held = " that the condition holds for" if board.where else ""
    cost = f"{board.tuning_cost_s:.0f} s of training and {board.device_s:.0f} device-seconds"
    best = board.recommended
    recommended = f"Recommended: {best.study}/{best.text}. " if best is not None else ""
    return (
        _ORDERS[board.order]
        + recommended
        + (
            f"{trust}.{_ties(board)} {counted(ranked, 'configuration')} shown; {board.reached} of"
            f" {counted(board.trials, 'trial')}{held} {board.met}, and all took {cost}; workload"
            f" {board.workload_hash[:8]}, protocol {board.protocol_version}."
        )
    )


def _ties(board: Board) -> str:
    kinds = {row.interval_of for row in board.rows if row.rank is not None}
    if board.within_s is not None:
        kinds = {"metric"} if board.kind == "estimate" else set()
    words = {
        "chance": " Intervals are those of the chance that a run meets the target"
        + (
            "; what often misses (a chance below 90 %) comes later than its expected time."
            if board.order == "time"
            else "."
        ),
        "step time": " Intervals are those of the step time, without the spread over seeds: a lead"
        " may be luck.",
        "metric": " Ranked by the metric at the end, that of another run as its search expects it.",
        "none": " Times without an interval say nothing of the spread over seeds: a lead may be"
        " luck.",
    }
    trust = next((text for kind, text in words.items() if kind in kinds), "")
    if not any(row.tied for row in board.rows):
        return trust
    return f"{trust} Ranks with = are shared: the interval overlaps that of the first of the rank."


def _clocks(board: Board) -> str:
    timings = {timing for row in board.rows for timing in row.timing.split(", ")}
    words = [text for timing, text in CLOCK_WORDS.items() if timing in timings]
    return "; ".join(words) or "none met the target"
