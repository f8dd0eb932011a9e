"""The table of all trials of a part: columns, cells with their sort keys, and what folds out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tune_speed.core.comparability import best_first, final_metric, target_of
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.text import compact, short_names
from tune_speed.reporting.page.words import clock_text, moment, setting
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

METRIC_NAMES = {"accuracy": "Accuracy", "macro_f1": "Macro F1", "micro_f1": "Micro F1"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    name: str
    """By which the filter knows it: `sgd.lr>0.1`."""
    label: str
    about: str
    is_number: bool


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell."""

    text: str
    key: str
    """By which the column is sorted; empty: missing, and last in either order."""


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial."""

    anchor: str
    """Id of its element on the page."""
    trial: ViewedTrial
    cells: tuple[Cell, ...]
    facts: tuple[tuple[str, str], ...]
    """What folds out: names and texts."""
    is_leader: bool


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """All trials of a part, the fastest first; misses follow, the nearest first."""

    columns: tuple[Column, ...]
    rows: tuple[TrialRow, ...]
    statuses: tuple[tuple[str, int], ...]
    """Ways to end that occurred, with how many trials each."""


def trial_table(part: StudyPart, *, anchors: Mapping[str, str]) -> TrialTable:
    """Returns the table of all estimates of `part`; `anchors` are element ids by run id."""
    names = short_names(name for trial in part.trials for name in trial.record.params)
    leader = part.leader
    searched = []
    for name, short in names.items():
        values = [trial.record.params.get(name) for trial in part.trials]
        is_number = all(isinstance(v, int | float) for v in values if v is not None)
        about = f"Searched: {name}"
        searched.append(Column(name=short, label=short, about=about, is_number=is_number))
    counts = {s: sum(t.record.status is s for t in part.trials) for s in Status}
    return TrialTable(
        columns=(*_fixed_columns(part), *searched),
        rows=tuple(
            TrialRow(
                anchor=anchors[trial.run_id],
                trial=trial,
                cells=_cells(trial.record, list(names)),
                facts=_facts(trial),
                is_leader=trial is leader,
            )
            for trial in sorted(part.trials, key=lambda trial: best_first(trial.record))
        ),
        statuses=tuple((status.value, count) for status, count in counts.items() if count),
    )


def trial_anchors(parts: Sequence[StudyPart]) -> dict[str, str]:
    """Returns the element id of each trial by run id: `trial-t0007`, numbered where it recurs.

    Points of figures link to these ids. A certified run has that of the trial which it repeats.
    """
    anchors: dict[str, str] = {}
    for part in parts:
        of_part = {t.record.trial_id: _anchor(t, anchors) for t in part.trials}
        anchors |= {t.run_id: of_part[t.record.trial_id] for t in part.trials}
        again = [t for t in part.certified if t.record.trial_id in of_part]
        anchors |= {t.run_id: of_part[t.record.trial_id] for t in again}
    return anchors


def _anchor(trial: ViewedTrial, taken: Mapping[str, str]) -> str:
    name = f"trial-{trial.record.trial_id}"
    again = sum(other.partition("--")[0] == name for other in set(taken.values()))
    return f"{name}--{again + 1}" if again else name


def _fixed_columns(part: StudyPart) -> tuple[Column, ...]:
    metric = target_of(part.workload).metric
    rows = (
        ("trial", "Trial", "Number of the trial in its study", False),
        ("ended", "Ended", "How the trial ended", False),
        ("time", "Time to target [s]", "Training clock until the target held", True),
        (metric, METRIC_NAMES.get(metric, metric), f"{metric} at the end of the run", True),
        ("train_s", "Trained [s]", "Training clock at the end of the run", True),
        ("steps", "Steps", "Optimizer steps", True),
    )
    return tuple(
        Column(name=name, label=label, about=about, is_number=is_number)
        for name, label, about, is_number in rows
    )


def _cells(record: TrialRecord, params: Sequence[str]) -> tuple[Cell, ...]:
    run, metric = record.runs[-1], final_metric(record)
    return (
        Cell(text=record.trial_id, key=record.trial_id),
        Cell(text=record.status.value, key=record.status.value),
        _figure(run.time_to_target_s, compact(run.time_to_target_s)),
        _figure(metric, "–" if metric is None else f"{metric:.4f}"),
        _figure(run.clocks.train_s, compact(run.clocks.train_s)),
        _figure(run.steps, f"{run.steps:,}"),
        *(
            # A parameter that the trial does not have is an empty cell, last in either order.
            Cell(
                text="" if value is None else setting(value),
                key="" if value is None else str(value),
            )
            for value in map(record.params.get, params)
        ),
    )


def _figure(value: float | None, text: str) -> Cell:
    # Sorted by the exact figure, not by what is shown of it.
    return Cell(text=text, key="" if value is None else repr(value))


def _facts(trial: ViewedTrial) -> tuple[tuple[str, str], ...]:
    record, run = trial.record, trial.record.runs[-1]
    chosen = ", ".join(f"{name} = {value}" for name, value in record.params.items())
    rows = (
        ("Proposed because", record.proposal_reason),
        ("Searched", chosen),
        ("Seed", str(run.seed)),
        ("Clock", clock_text(run)),
        ("Speed", f"{compact(run.images_per_s)} images/s, {compact(run.step_time_ms)} ms a step"),
        ("Peak memory", f"{compact(run.peak_memory_gib)} of {compact(run.memory_limit_gib)} GiB"),
        ("Time", f"{moment(record.started_at)} to {moment(record.finished_at)}"),
        ("Again", "" if record.is_own_loop else f"tune-speed train {trial.run_id}"),
        ("All of it", f"tune-speed show {trial.run_id}"),
    )
    return tuple((name, text) for name, text in rows if text)
