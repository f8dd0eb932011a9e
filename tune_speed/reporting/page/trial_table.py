"""The table of all trials of a part: columns, cells with their sort keys, and what folds out."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tune_speed.core.comparability import best_first, final_metric
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord, counts_of_ends, ended_as
from tune_speed.core.text import compact, fixed, short_names
from tune_speed.reporting.page.words import clock_text, moment, setting
from tune_speed.reporting.study.view import StudyPart, ViewedTrial
from tune_speed.tracking.columns import COLUMNS
from tune_speed.tracking.filter.fields import FieldReader

# Rows of the table: a browser takes seconds to sort more, and 20,000 are 50 MB.
MOST_ROWS = 1000
METRIC_NAMES = {"accuracy": "Accuracy", "macro_f1": "Macro F1", "micro_f1": "Micro F1"}


class Column(NamedTuple):
    """One column."""

    name: str
    """The field of `--where`, by which the filter knows it too: `optimizer.sgd.lr>0.1`."""
    label: str
    about: str
    is_number: bool


class Cell(NamedTuple):
    """One cell."""

    text: str
    key: str
    """By which the column is sorted; empty: missing, and last in either order."""


class TrialRow(NamedTuple):
    """One trial."""

    anchor: str
    trial: ViewedTrial
    cells: tuple[Cell, ...]
    facts: tuple[tuple[str, str], ...]
    is_leader: bool


class TrialTable(NamedTuple):
    """The trials of a part, the fastest first; misses follow, the nearest first."""

    columns: tuple[Column, ...]
    rows: tuple[TrialRow, ...]
    statuses: tuple[tuple[str, int], ...]
    num_trials: int
    """All of the part; the last of them have no row where they are more than `MOST_ROWS`."""
    fields: str
    """What the filter knows of the rows: `fields_of`."""


def trial_table(part: StudyPart, *, anchors: Mapping[str, str]) -> TrialTable:
    """Returns the table of the estimates of `part`; `anchors` are element ids by run id."""
    names = short_names(name for trial in part.trials for name in trial.record.params)
    metric, searched = part.target.metric, []
    for name, short in names.items():
        values = [trial.record.params.get(name) for trial in part.trials]
        is_number = all(isinstance(v, int | float) for v in values if v is not None)
        searched.append(Column(name, short, "Chosen by the search", is_number))
    columns = (
        Column("trial_id", "Trial", "Number of the trial in its study", False),
        Column("status", "Ended", "How the trial ended", False),
        Column(
            "time_to_target_s", "Time to target [s]", "Training clock until the target held", True
        ),
        Column(
            "final_metric",
            METRIC_NAMES.get(metric, metric),
            f"{metric} at the end of the run",
            True,
        ),
        Column("train_s", "Trained [s]", "Training clock at the end of the run", True),
        Column("steps", "Steps", "Optimizer steps", True),
        *searched,
    )
    shown = _shown(part)
    rows = tuple(
        TrialRow(
            anchors[trial.run_id],
            trial,
            _cells(trial.record, list(names)),
            trial_facts(trial),
            trial is part.leader,
        )
        for trial in shown
    )
    statuses = tuple(counts_of_ends(trial.record for trial in shown).items())
    fields = fields_of([trial.record for trial in shown])
    return TrialTable(columns, rows, statuses, len(part.trials), fields)


def _shown(part: StudyPart) -> list[ViewedTrial]:
    return sorted(part.trials, key=lambda trial: best_first(trial.record))[:MOST_ROWS]


def trial_anchors(parts: Sequence[StudyPart]) -> dict[str, str]:
    """Returns the element id of each row by run id: `trial-t0007`, numbered where it recurs.

    Points of figures link to these ids. A certified run has that of the trial which it repeats.
    """
    anchors: dict[str, str] = {}
    for part in parts:
        shown = _shown(part)
        taken = Counter(anchor.partition("--")[0] for anchor in set(anchors.values()))
        of_part = {}
        for name in {trial.record.trial_id: None for trial in shown}:
            before = taken[f"trial-{name}"]
            of_part[name] = f"trial-{name}--{before + 1}" if before else f"trial-{name}"
        anchors |= {t.run_id: of_part[t.record.trial_id] for t in shown}
        again = [t for t in part.certified if t.record.trial_id in of_part]
        anchors |= {t.run_id: of_part[t.record.trial_id] for t in again}
    return anchors


def _cells(record: TrialRecord, params: Sequence[str]) -> tuple[Cell, ...]:
    run, metric = record.runs[-1], final_metric(record)
    # Sorted by the exact figure, not by what is shown of it.
    figures = (
        (run.time_to_target_s, compact(run.time_to_target_s)),
        (metric, fixed(metric, 4)),
        (run.clocks.train_s, compact(run.clocks.train_s)),
        (run.steps, f"{run.steps:,}"),
    )
    # A parameter that the trial does not have is an empty cell, last in either order.
    chosen = map(record.params.get, params)
    return (
        Cell(record.trial_id, record.trial_id),
        Cell(ended_as(record), record.status.value),
        *(Cell(text, "" if value is None else repr(value)) for value, text in figures),
        *(Cell("", "") if v is None else Cell(setting(v), str(v)) for v in chosen),
    )


def trial_facts(trial: ViewedTrial) -> tuple[tuple[str, str], ...]:
    record, run = trial.record, trial.record.runs[-1]
    chosen = ", ".join(f"{name} = {value}" for name, value in record.params.items())
    rows = (
        ("Proposed because", str(record.proposal_reason)),
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


def fields_of(records: Sequence[TrialRecord]) -> str:
    """Returns what a page's filter reads, as JSON.

    `same` has the values that all records share, `rows` the others in their order; `columns` says
    which texts a result can be (true: a number); `unclear` why a name cannot be asked for.
    """
    readers = [FieldReader(record) for record in records]
    same, rows, unclear = dict[str, Any](), dict[str, list[Any]](), dict[str, str]()
    for name in sorted(set().union(*(reader.names() for reader in readers))):
        try:
            values = [_plain(reader.value(name)) for reader in readers]
        except ConfigError as error:
            unclear[name] = str(error)
            continue
        # Most settings are alike in all trials: written once they take little room.
        if all(value == values[0] and type(value) is type(values[0]) for value in values):
            same[name] = values[0]
        else:
            rows[name] = values
    columns = {name: True if c.is_number else list(c.among) for name, c in COLUMNS.items()}
    facts = {"same": same, "rows": rows, "columns": columns, "unclear": unclear}
    return json.dumps(facts, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
