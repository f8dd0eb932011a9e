"""Our figures next to the published ones, for `tune-speed compare --with-paper`.

A published setting is shown next to a trial where network and data set are the same. Everything
else that its source names is compared field by field.
"""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from tune_speed.components.metrics.base import OF_RUN, speed_up
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import device_text
from tune_speed.experiments.published import published
from tune_speed.experiments.published.published import Setting, figures_of
from tune_speed.reporting.trials.comparison import text_of
from tune_speed.tracking.filter.fields import settings_of

COMPONENTS = ("model", "optimizer", "lr_schedule", "order", "loader", "speedups")
# Fields that tell the arms of a source apart, and precisions that count as one for that: the
# sources have fp16 only.
TECHNIQUES = {"accumulation_steps", "devices", "precision", "speedups.depth"}
MIXED = {"fp16", "bf16"}
# Training images of CIFAR-10, and of CIFAR-100.
ALL_IMAGES = 50_000


class Match(NamedTuple):
    """A trial, a published setting of its network and data set, and the rest in words by field."""

    record: TrialRecord
    setting: Setting
    same: Mapping[str, str]
    differs: Mapping[str, str]

    @property
    def is_arm(self) -> bool:
        """Whether the trial has the techniques that tell the setting from others of its source."""
        others = TECHNIQUES & self.differs.keys()
        precisions = {self.setting.recipe.get("precision"), self.record.recipe.get("precision")}
        return not others or (others == {"precision"} and precisions <= MIXED)


def paper_table(records: Sequence[TrialRecord]) -> dict[str, list[Any]]:
    """Returns `figures` and `settings`, as rows of the same fields each, and `notes`: sentences.

    Figures have run, source, setting, metric, ours (of several runs the mean), theirs, unit,
    differs (how many things do: `settings` has them), known_defect (of theirs) and note (on how the
    two were measured).
    """
    matches = [match for record in records for match in matches_of(record)]
    settings = [
        {
            **_place(match),
            "model": match.setting.model,
            "dataset": match.setting.dataset,
            "same": "; ".join(match.same.values()),
            "differs": "; ".join(match.differs.values()),
        }
        for match in matches
    ]
    figures = [row for match in matches for row in _figure_rows(match)]
    nothing = "no source is known to have its network on its data; `list papers` has the sources"
    unlike = [each for each in records if not any(match.record is each for match in matches)]
    notes = [f"{_run(each)}: {nothing}" for each in unlike]
    return {"figures": [*figures, *_speed_up_rows(matches)], "settings": settings, "notes": notes}


def _figure_rows(match: Match) -> Iterator[dict[str, Any]]:
    for published_metric, figure in figures_of(match.setting).items():
        for name, metric, scale, note in published.METRICS_HERE.get(published_metric, ()):
            is_of_gpu = metric.startswith("peak_memory")
            runs = [r for r in match.record.runs if not is_of_gpu or r.device.kind != "cpu"]
            values = [value for run in runs if (value := OF_RUN[metric](run)) is not None]
            ours = statistics.fmean(values) * scale if values else None
            figures = {"metric": name, "ours": ours, "theirs": figure.number, "unit": figure.unit}
            yield _row(match, figures, figure.known_defect, note)


def _speed_up_rows(matches: Sequence[Match]) -> Iterator[dict[str, Any]]:
    arms = [match for match in matches if match.is_arm]
    for match in arms:
        base = published.base_of(match.setting)
        if base is None:
            continue
        times = [figures_of(setting)["exec_time"] for setting in (base, match.setting)]
        bases = [b.record for b in arms if b.setting is base and _is_alike(b.record, match.record)]
        ours_s = [_train_s(record) for record in (*bases, match.record)]
        ours = speed_up(*ours_s) if len(ours_s) == 2 and all(ours_s) else None
        theirs = speed_up(*(time.number or 0 for time in times))
        figures = {"metric": "speed-up", "ours": ours, "theirs": theirs, "unit": "x"}
        defects = "; ".join(time.known_defect for time in times if time.known_defect)
        yield _row(match, figures, defects, "theirs of execution times, ours of training clocks")


def _is_alike(base: TrialRecord, record: TrialRecord) -> bool:
    is_alike = base.workload_hash == record.workload_hash
    is_alike &= base.recipe.get("epochs") == record.recipe.get("epochs")
    # Several devices are described otherwise than the one of their baseline.
    return is_alike and (base.device == record.device or record.recipe.get("devices", 1) > 1)


def _train_s(record: TrialRecord) -> float:
    return statistics.fmean([run.clocks.train_s for run in record.runs] or [0.0])


def _row(match: Match, figures: dict[str, Any], defect: str, note: str) -> dict[str, Any]:
    about = {"differs": len(match.differs), "known_defect": defect, "note": note}
    return {**_place(match), **figures, **about}


def _run(record: TrialRecord) -> str:
    certified = "@certified" if record.kind == "certified" else ""
    return f"{record.study}/{record.trial_id}{certified}"


def _place(match: Match) -> dict[str, str]:
    source = f"{match.setting.source}, {match.setting.table}"
    return {"run": _run(match.record), "source": source, "setting": match.setting.setting}


# --- Which settings a trial is of


def matches_of(record: TrialRecord) -> list[Match]:
    """Returns the settings of its network and data set, the nearest first."""
    flat, dataset = flat_recipe(record.recipe), dataset_of(record.workload)
    found = (
        compare(setting, record)
        for setting in published.SETTINGS
        if not record.is_own_loop
        and setting.dataset == dataset
        and any(
            flat.get("model") == name
            and all(flat.get(f"model.{field}", value) == value for field, value in fields.items())
            for name, fields in published.MODELS_HERE[setting.model]
        )
    )
    return sorted(found, key=lambda match: len(match.differs))


def compare(setting: Setting, record: TrialRecord) -> Match:
    here = {**flat_recipe(record.recipe), **_circumstances(setting, record)}
    slots = [path for path in here if path.startswith("speedups.") and path.count(".") == 1]
    # No source trains towards a target, so that this differs from all of them.
    there = {**dict.fromkeys(slots), **setting.recipe, "device": setting.hardware or "not named"}
    there |= {"part": setting.evaluated_on, "training images": setting.train_images, "target": None}
    same, differs = dict[str, str](), dict[str, str]()
    for path, value in there.items():
        if is_same(value, here.get(path)):
            same[path] = f"{path} {_text(value)}"
        else:
            differs[path] = f"{path} {_text(value)} there, {_text(here.get(path))} here"
    if setting.beside:
        differs["beside"] = f"{setting.beside} there"
    return Match(record, setting, same, differs)


def _circumstances(setting: Setting, record: TrialRecord) -> dict[str, Any]:
    is_named = setting.hardware and setting.hardware.lower() in str(record.device).lower()
    split, target = (record.workload.get(name) or {} for name in ("split", "target"))
    held = round(ALL_IMAGES * split.get("validation_frac", 0.1))
    images = split.get("train_samples") or ALL_IMAGES - held
    is_on_both = record.workload.get("certify_on") == "train+validation"
    if record.evaluated_on == "test" and is_on_both:
        images += split.get("validation_samples") or held
    return {
        "device": setting.hardware if is_named else device_text(record.device),
        "part": record.evaluated_on,
        "training images": images,
        "target": f"{target.get('metric')} {target.get('value')}",
    }


def flat_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns its settings by path without the names of entries: `optimizer.lr`."""
    settings, flat = settings_of(recipe), dict[str, Any]()
    for path, value in settings.items():
        parts = path.split(".")
        depth = 2 if parts[0] == "speedups" else 1
        name = settings.get(".".join(parts[:depth]))
        is_entry = parts[0] in COMPONENTS and parts[depth : depth + 1] == [name]
        # `{}` says no more than that an entry was chosen, which its place says too.
        if value != {}:
            flat[".".join(parts[:depth] + parts[depth + is_entry :])] = value
    flat["devices"] = flat.get("devices", 1)
    factors = [flat.get("batch_size"), flat.get("accumulation_steps", 1), flat["devices"]]
    if all(isinstance(factor, int) for factor in factors):
        flat["effective_batch_size"] = math.prod(factors)
    # Published is the rate of one step; ours may be for a number of examples.
    lr, samples = flat.get("optimizer.lr"), flat.get("effective_batch_size")
    if lr is not None and (per_examples := flat.get("optimizer.lr_per_examples")):
        lr = float(lr * samples / per_examples) if samples else None
    return flat | {"lr": lr}


def dataset_of(workload: Mapping[str, Any]) -> str | None:
    """Returns its published name where the data set is CIFAR, by its name or files'."""
    names = [PurePath(str(value)).name for value in (workload.get("dataset") or {}).values()]
    # No digit may follow, so that 10 is not found in `cifar100`, nor 100 in `cifar1000`.
    matches = (re.search(r"cifar[-_]?(100|10)(?!\d)", name.lower()) for name in names)
    found = {f"CIFAR-{match[1]}" for match in matches if match}
    return found.pop() if len(found) == 1 else None


def is_same(there: Any, here: Any) -> bool:
    is_number = isinstance(there, int | float) and isinstance(here, int | float)
    # Our rate of a step is computed (see `flat_recipe`), so that equal ones differ by rounding.
    return math.isclose(there, here, rel_tol=1e-6) if is_number else bool(there == here)


def _text(value: Any) -> str:
    return "none" if value is None else text_of(value)
