"""Our figures beside the published ones, for `tune-speed compare --with-paper`."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tune_speed.components.metrics.of_run import epoch_s, execution_s, peak_memory_frac
from tune_speed.core.records import Evaluation, RunResult, TrialRecord
from tune_speed.experiments.published.matching import (
    PaperRow,
    compare,
    dataset_of,
    flat_recipe,
    paper_rows,
)
from tune_speed.experiments.published.settings import SETTINGS, Setting
from tune_speed.experiments.published.speed_ups import SpeedUp, speed_ups

GB_PER_GIB = 2**30 / 1e9
SECONDS_PER_HOUR = 3600


class Ours(NamedTuple):
    """What of ours stands beside a published metric."""

    name: str
    of_run: Callable[[RunResult], float | None]
    """Returns it for a run in the published figures' unit; None where the run does not tell."""
    note: str = ""
    """Why the two are not measured alike; empty where they are, as far as the source says."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """Ours beside theirs, as rows of the same fields each."""

    figures: tuple[dict[str, Any], ...]
    """A row each of run, metric, ours, theirs, unit, source, setting, differs (how many things do:
    `settings` has them), known_defect (of theirs) and note (on how the two were measured)."""
    settings: tuple[dict[str, Any], ...]
    """A row on each run and setting of it: run, source, setting, model, dataset, same, differs."""
    notes: tuple[str, ...]
    """A line on each record that no source has anything on, and then one on what they have."""


def _final(read: Callable[[Evaluation], float | None], *, scale: float = 1.0) -> Any:
    """Returns a function that reads the last evaluation of a run, times `scale`."""

    def of_run(run: RunResult) -> float | None:
        value = read(run.final) if run.final else None
        return None if value is None else value * scale

    return of_run


def _hours(run: RunResult) -> float | None:
    seconds = execution_s(run)
    return None if seconds is None else seconds / SECONDS_PER_HOUR


def _memory_gb(run: RunResult) -> float | None:
    is_gpu = run.peak_memory_gib is not None and not run.device.startswith("cpu")
    return (run.peak_memory_gib or 0.0) * GB_PER_GIB if is_gpu else None


def _memory_percent(run: RunResult) -> float | None:
    share = None if run.device.startswith("cpu") else peak_memory_frac(run)
    return None if share is None else share * 100


_ACCURACY = Ours("accuracy", _final(lambda e: e.accuracy, scale=100))
_EITHER = "the source does not say which F1 it means"
_ALLOCATOR = "theirs by nvidia-smi, context included; ours is the allocator's peak"
OURS: Mapping[str, tuple[Ours, ...]] = {
    "accuracy": (_ACCURACY,),
    "val_accuracy": (_ACCURACY,),
    "test_accuracy": (_ACCURACY,),
    "f1": (
        Ours("macro F1", _final(lambda e: e.macro_f1, scale=100), _EITHER),
        Ours("micro F1", _final(lambda e: e.micro_f1, scale=100), _EITHER),
    ),
    "train_loss": (Ours("training loss", _final(lambda e: e.train_loss)),),
    "val_loss": (Ours("validation loss", _final(lambda e: e.loss)),),
    "exec_time": (
        Ours("execution time", _hours, "what theirs includes is unsaid; ours is the whole run"),
    ),
    "time_per_epoch": (Ours("time of an epoch", epoch_s),),
    "gpu_memory": (Ours("GPU memory", _memory_gb, _ALLOCATOR),),
    "gpu_memory_share": (Ours("GPU memory, share", _memory_percent, _ALLOCATOR),),
}
"""Published metric: ours, one or several where the source does not say which it is."""


def paper_table(records: Sequence[TrialRecord]) -> PaperTable:
    """Returns our results beside all published ones of the same network and data set.

    Of several runs of a record the mean counts.
    """
    figures: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    notes: list[str] = []
    for record in records:
        rows = paper_rows(record)
        if not rows:
            notes.append(_nothing_on(record))
        figures += [cells for row in rows for cells in _figure_rows(record, row)]
        settings += [_setting_row(record, row) for row in _one_a_setting(rows)]
    for record in records:
        figures += [_speed_up_row(record, faster) for faster in speed_ups(record, records)]
    if notes:
        notes.append(f"published are: {published_settings()}")
    return PaperTable(figures=tuple(figures), settings=tuple(settings), notes=tuple(notes))


def published_settings() -> str:
    """Returns which networks were published on which data, in words."""
    models: dict[str, dict[str, None]] = {}
    for setting in SETTINGS:
        datasets = {s.dataset: None for s in SETTINGS if s.source == setting.source}
        where = f"on {' and '.join(datasets)} ({setting.source})"
        models.setdefault(where, {})[setting.model] = None
    return "; ".join(f"{', '.join(names)} {where}" for where, names in models.items())


def _nothing_on(record: TrialRecord) -> str:
    if record.is_own_loop:
        return f"{_run(record)}: which network and data its training function has is not known"
    model = flat_recipe(record.recipe).get("model")
    data = dataset_of(record.workload) or record.workload.get("dataset", {}).get("name")
    return f"{_run(record)}: no source has {model}, as it is here, on {data}"


def _figure_rows(record: TrialRecord, row: PaperRow) -> Iterator[dict[str, Any]]:
    for ours in OURS.get(row.figure.metric, ()):
        yield _cells(
            record,
            row.setting,
            metric=ours.name,
            ours=_mean(ours, record.runs),
            theirs=row.figure.number,
            unit=row.figure.unit,
            known_defect=row.figure.known_defect,
            note=ours.note,
            differs=len(row.differs),
        )


def _speed_up_row(record: TrialRecord, faster: SpeedUp) -> dict[str, Any]:
    return _cells(
        record,
        faster.setting,
        metric="speed-up",
        ours=faster.ours,
        theirs=faster.theirs,
        unit="x",
        known_defect="; ".join(faster.doubts),
        note="theirs of execution times, ours of training clocks",
        differs=len(compare(faster.setting, record)[1]),
    )


def _cells(
    record: TrialRecord,
    setting: Setting,
    *,
    metric: str,
    ours: float | None,
    theirs: float | None,
    unit: str,
    known_defect: str,
    note: str,
    differs: int,
) -> dict[str, Any]:
    return {
        "run": _run(record),
        "metric": metric,
        "ours": None if ours is None else float(f"{ours:.4g}"),
        "theirs": None if theirs is None else float(f"{theirs:.4g}"),
        "unit": unit,
        "source": f"{setting.source}, {setting.table}",
        "setting": setting.setting,
        "differs": differs,
        "known_defect": known_defect,
        "note": note,
    }


def _setting_row(record: TrialRecord, row: PaperRow) -> dict[str, Any]:
    return {
        "run": _run(record),
        "source": f"{row.setting.source}, {row.setting.table}",
        "setting": row.setting.setting,
        "model": row.setting.model,
        "dataset": row.setting.dataset,
        "same": "; ".join(row.same),
        "differs": "; ".join(row.differs),
    }


def _one_a_setting(rows: Sequence[PaperRow]) -> list[PaperRow]:
    return list({id(row.setting): row for row in rows}.values())


def _mean(ours: Ours, runs: Sequence[RunResult]) -> float | None:
    values = [value for run in runs if (value := ours.of_run(run)) is not None]
    return statistics.fmean(values) if values else None


def _run(record: TrialRecord) -> str:
    """Returns the record's name as `tune-speed show` takes it."""
    certified = "@certified" if record.kind == "certified" else ""
    return f"{record.study}/{record.trial_id}{certified}"
