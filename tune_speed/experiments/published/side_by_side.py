"""Our figures next to the published ones, for `tune-speed compare --with-paper`."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tune_speed.components.metrics.base import OF_RUN, epoch_s, peak_memory_frac, speed_up
from tune_speed.core.records import RunResult, TrialRecord
from tune_speed.experiments.published import published
from tune_speed.experiments.published.published import SETTINGS, Setting, base_of

# Paths that tell the arms of a source apart, where it names them.
NAMED_TECHNIQUES = ("accumulation_steps", "precision", "devices")
# Precisions that count as one for that: the sources have fp16 only.
MIXED = {"fp16": "mixed", "bf16": "mixed"}
COLUMNS = (
    *("run", "metric", "ours", "theirs", "unit", "source", "setting", "differs"),
    *("known_defect", "note"),
)
GB_PER_GIB = 2**30 / 1e9
SECONDS_PER_HOUR = 3600


class Ours(NamedTuple):
    """Our counterpart of a published metric."""

    name: str
    of_run: Callable[[RunResult], float | None]
    scale: float = 1.0
    """What turns its unit into that of the published figures."""
    note: str = ""
    """Why the two are not measured alike; empty where they are, as far as the source says."""


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """Ours next to theirs, as rows of the same fields each."""

    figures: tuple[dict[str, Any], ...]
    """A row each of run, metric, ours, theirs, unit, source, setting, differs (how many things do:
    `settings` has them), known_defect (of theirs) and note (on how the two were measured)."""
    settings: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    """A line on each record that no source has anything on, and then one on what they have."""


def _final(metric: str) -> Callable[[RunResult], float | None]:
    return lambda run: getattr(run.final, metric, None)


_ACCURACY = Ours("accuracy", _final("accuracy"), 100)
_EITHER = "the source does not say which F1 it means"
_EXECUTION = "what theirs includes is unsaid; ours is the whole run"
_ALLOCATOR = "theirs by nvidia-smi, context included; ours is the allocator's peak"


def _on_gpu(read: Callable[[RunResult], float | None]) -> Callable[[RunResult], float | None]:
    return lambda run: None if run.device.kind == "cpu" else read(run)


OURS: Mapping[str, tuple[Ours, ...]] = {
    "accuracy": (_ACCURACY,),
    "val_accuracy": (_ACCURACY,),
    "test_accuracy": (_ACCURACY,),
    "f1": (
        Ours("macro F1", _final("macro_f1"), 100, _EITHER),
        Ours("micro F1", _final("micro_f1"), 100, _EITHER),
    ),
    "train_loss": (Ours("training loss", _final("train_loss")),),
    "val_loss": (Ours("validation loss", _final("loss")),),
    "exec_time": (Ours("execution time", OF_RUN["execution_s"], 1 / SECONDS_PER_HOUR, _EXECUTION),),
    "time_per_epoch": (Ours("time of an epoch", epoch_s),),
    "gpu_memory": (
        Ours("GPU memory", _on_gpu(lambda run: run.peak_memory_gib), GB_PER_GIB, _ALLOCATOR),
    ),
    "gpu_memory_share": (Ours("GPU memory, share", _on_gpu(peak_memory_frac), 100, _ALLOCATOR),),
}
"""Published metric: ours, one or several where the source does not say which it is."""


def paper_table(records: Sequence[TrialRecord]) -> PaperTable:
    """Of several runs of a record the mean counts."""
    figures: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    notes: list[str] = []
    for record in records:
        rows = published.paper_rows(record)
        if not rows and record.is_own_loop:
            unknown = "which network and data its training function has is not known"
            notes.append(f"{_run(record)}: {unknown}")
        elif not rows:
            model = published.flat_recipe(record.recipe).get("model")
            given = record.workload.get("dataset", {}).get("name")
            data = published.dataset_of(record.workload) or given
            notes.append(f"{_run(record)}: no source has {model}, as it is here, on {data}")
        figures += [cells for row in rows for cells in _figure_rows(record, row)]
        # By identity, as a setting holds a dict and so cannot be hashed.
        one_a_setting = {id(row.setting): row for row in rows}
        settings += [
            {
                "run": _run(record),
                "source": f"{row.setting.source}, {row.setting.table}",
                "setting": row.setting.setting,
                "model": row.setting.model,
                "dataset": row.setting.dataset,
                "same": "; ".join(row.same),
                "differs": "; ".join(row.differs),
            }
            for row in one_a_setting.values()
        ]
    for record in records:
        figures += _speed_up_rows(record, records)
    if notes:
        notes.append(f"published are: {published_settings()}")
    return PaperTable(figures=tuple(figures), settings=tuple(settings), notes=tuple(notes))


def published_settings() -> str:
    models: dict[str, dict[str, None]] = {}
    for setting in SETTINGS:
        datasets = {s.dataset: None for s in SETTINGS if s.source == setting.source}
        where = f"on {' and '.join(datasets)} ({setting.source})"
        models.setdefault(where, {})[setting.model] = None
    return "; ".join(f"{', '.join(names)} {where}" for where, names in models.items())


def _figure_rows(record: TrialRecord, row: published.PaperRow) -> Iterator[dict[str, Any]]:
    for ours in OURS.get(row.figure.metric, ()):
        values = [value for run in record.runs if (value := ours.of_run(run)) is not None]
        yield _cells(
            (record, row.setting, len(row.differs)),
            metric=ours.name,
            ours=_rounded(statistics.fmean(values) * ours.scale if values else None),
            theirs=_rounded(row.figure.number),
            unit=row.figure.unit,
            known_defect=row.figure.known_defect,
            note=ours.note,
        )


def _speed_up_rows(record: TrialRecord, records: Sequence[TrialRecord]) -> Iterator[dict[str, Any]]:
    for setting in published.settings_of(record):
        base = base_of(setting)
        if base is None or not _is_arm(record, setting):
            continue
        times = [
            next(figure for figure in published.figures_of(each) if figure.metric == "exec_time")
            for each in (base, setting)
        ]
        base_h, arm_h = (time.number for time in times)
        assert base_h is not None and arm_h is not None, times
        yield _cells(
            (record, setting, len(published.compare(setting, record)[1])),
            metric="speed-up",
            ours=_rounded(_own_speed_up(record, base, records)),
            theirs=_rounded(speed_up(base_h, arm_h)),
            unit="x",
            known_defect="; ".join(time.known_defect for time in times if time.known_defect),
            note="theirs of execution times, ours of training clocks",
        )


def _is_arm(record: TrialRecord, setting: Setting) -> bool:
    flat = published.flat_recipe(record.recipe)
    named = [path for path in NAMED_TECHNIQUES if path in setting.recipe]
    depth = "speedups.depth"
    return setting.recipe.get(depth) == flat.get(depth) and all(
        _kind(setting.recipe[path]) == _kind(flat.get(path)) for path in named
    )


def _kind(value: Any) -> Any:
    return MIXED.get(value, value) if isinstance(value, str) else value


def _own_speed_up(
    record: TrialRecord, base: Setting, records: Sequence[TrialRecord]
) -> float | None:
    bases = [
        each
        for each in records
        if base in published.settings_of(each)
        and _is_arm(each, base)
        and each.recipe.get("epochs") == record.recipe.get("epochs")
        and each.workload_hash == record.workload_hash
        # Several devices are described otherwise than the one of their baseline.
        and (each.device == record.device or record.recipe.get("devices", 1) > 1)
    ]
    if len(bases) != 1 or not bases[0].runs or not record.runs:
        return None
    base_s, ours_s = (
        statistics.fmean(run.clocks.train_s for run in each.runs) for each in (bases[0], record)
    )
    return speed_up(base_s, ours_s) if base_s and ours_s else None


def _cells(of: tuple[TrialRecord, Setting, int], **cells: Any) -> dict[str, Any]:
    record, setting, differs = of
    source = f"{setting.source}, {setting.table}"
    place = {"run": _run(record), "source": source, "setting": setting.setting, "differs": differs}
    return {name: {**place, **cells}[name] for name in COLUMNS}


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else float(f"{figure:.4g}")


def _run(record: TrialRecord) -> str:
    certified = "@certified" if record.kind == "certified" else ""
    return f"{record.study}/{record.trial_id}{certified}"
