"""Which published settings a trial is of, and what still differs.

A setting is shown next to a trial where network and data set are the same. Everything else that the
source names is compared field by field.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tune_speed.core.records import TrialRecord
from tune_speed.core.text import device_text
from tune_speed.experiments.published import published

COMPONENTS = ("model", "optimizer", "lr_schedule", "order", "loader")
"""Fields of a recipe that hold an entry of a table."""
# Published figures that are settings, not results.
SETTING_METRICS = frozenset({"epochs", "batch_size"})
# Training images of CIFAR-10, and of CIFAR-100.
ALL_IMAGES = 50_000


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A published figure next to a trial."""

    figure: published.PublishedFigure
    setting: published.Setting
    same: tuple[str, ...]
    """What the source names and the trial has too."""
    differs: tuple[str, ...]
    """What may explain a difference of the two figures."""


def paper_rows(record: TrialRecord) -> tuple[PaperRow, ...]:
    """Returns the published results of the record's network and data set, nearest setting first.

    Empty where no source has both.
    """
    compared = [(setting, *compare(setting, record)) for setting in settings_of(record)]
    return tuple(
        PaperRow(figure=figure, setting=setting, same=same, differs=differs)
        for setting, same, differs in sorted(compared, key=lambda each: len(each[2]))
        for figure in figures_of(setting)
    )


def settings_of(record: TrialRecord) -> tuple[published.Setting, ...]:
    """Returns the published settings with the record's network and data set."""
    flat, dataset = flat_recipe(record.recipe), dataset_of(record.workload)
    return tuple(
        setting
        for setting in published.SETTINGS
        if published.DATASETS_HERE[setting.dataset] == dataset
        and any(
            flat.get("model") == name
            and all(flat.get(f"model.{field}", value) == value for field, value in fields.items())
            for name, fields in published.MODELS_HERE[setting.model]
        )
    )


def figures_of(setting: published.Setting) -> tuple[published.PublishedFigure, ...]:
    """Returns the results that were published of a setting."""
    place = (setting.source, setting.table, setting.model, setting.dataset, setting.setting)
    return tuple(
        figure
        for figure in published.published_figures()
        if (figure.source, figure.table, figure.model, figure.dataset, figure.setting) == place
        and figure.metric not in SETTING_METRICS
    )


def compare(
    setting: published.Setting, record: TrialRecord
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns what a published setting and a trial of its network have in common, and what not."""
    flat = flat_recipe(record.recipe)
    same, differs = [], []
    for path, there in setting.recipe.items():
        here = flat.get(path)
        if is_same(there, here):
            same.append(f"{path} {_text(there)}")
        else:
            differs.append(f"{path} {_text(there)} there, {_text(here)} here")
    slots = (path for path in flat if path.startswith("speedups.") and path.count(".") == 1)
    differs += [f"{p} none there, {flat[p]} here" for p in slots if p not in setting.recipe]
    for is_alike, words in _circumstances(setting, record):
        (same if is_alike else differs).append(words)
    return tuple(same), tuple(differs)


def flat_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe by the paths that `settings` uses."""
    flat: dict[str, Any] = {}
    for field, value in recipe.items():
        if field in COMPONENTS:
            flat.update(_entry(field, value))
        elif field == "speedups":
            for slot, technique in value.items():
                flat.update(_entry(f"speedups.{slot}", technique))
        else:
            flat[field] = value
    flat["devices"] = flat.get("devices", 1)
    flat["effective_batch_size"] = samples_per_step = _samples_per_step(flat)
    # `settings` has the rate of one step; ours may be for a number of examples.
    lr, per_examples = flat.get("optimizer.lr"), flat.get("optimizer.lr_per_examples")
    if lr is not None and per_examples is not None:
        lr = None if samples_per_step is None else float(lr * samples_per_step / per_examples)
    flat["lr"] = lr
    return flat


def dataset_of(workload: Mapping[str, Any]) -> str | None:
    """Returns `cifar10` or `cifar100` where the data set is one of them, by its name or files'."""
    fields = workload.get("dataset") or {}
    names = [PurePath(str(value)).name for value in fields.values()]
    found = {
        f"cifar{match[1]}"
        for name in names
        # No digit may follow, so that 10 is not found in `cifar100`, nor 100 in `cifar1000`.
        if (match := re.search(r"cifar[-_]?(100|10)(?!\d)", name.lower()))
    }
    return found.pop() if len(found) == 1 else None


def is_same(there: Any, here: Any) -> bool:
    """Returns whether two values of a field are equal, numbers to one in a million."""
    is_pair = isinstance(there, list | tuple) and isinstance(here, list | tuple)
    if is_pair and len(there) == len(here):
        return all(is_same(a, b) for a, b in zip(there, here, strict=True))
    numbers = [v for v in (there, here) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        # Our rate of a step is computed (see `flat_recipe`), so that equal ones differ by rounding.
        return math.isclose(*numbers, rel_tol=1e-6)
    return bool(there == here)


def _entry(path: str, value: Any) -> dict[str, Any]:
    """Returns an entry of a table, `{sgd: {lr: 0.1}}` or `sgd`, by path."""
    if isinstance(value, str):
        return {path: value}
    (name, fields) = next(iter(value.items()))
    return {path: name, **{f"{path}.{field}": inner for field, inner in (fields or {}).items()}}


def _samples_per_step(flat: Mapping[str, Any]) -> int | None:
    factors = (flat.get("batch_size"), flat.get("accumulation_steps", 1), flat["devices"])
    numbers = [factor for factor in factors if isinstance(factor, int)]
    if len(numbers) == len(factors):
        return math.prod(numbers)
    given: int | None = flat.get("effective_batch_size")
    return given


def _circumstances(setting: published.Setting, record: TrialRecord) -> Iterator[tuple[bool, str]]:
    """Yields what is not in the recipe: whether it is the same, and words on it."""
    if setting.hardware and setting.hardware.lower() in str(record.device).lower():
        yield True, f"device {setting.hardware}"
    else:
        here = device_text(record.device)
        yield False, f"device {setting.hardware or 'not named'} there, {here} here"
    part, ours = setting.evaluated_on, record.evaluated_on
    yield part == ours, f"{part} part" if part == ours else f"{part} part there, {ours} part here"
    split = record.workload.get("split") or {}
    held = round(ALL_IMAGES * split.get("validation_frac", 0.1))
    here = split.get("train_samples") or ALL_IMAGES - held
    if ours == "test" and record.workload.get("certify_on") == "train+validation":
        here += split.get("validation_samples") or held
    images = setting.train_images
    alike = images == here
    yield alike, f"{images} training images" + ("" if alike else f" there, {here} here")
    target = record.workload.get("target") or {}
    # No source trains towards a target, so that this differs from all of them.
    words = f"no target there, {target.get('metric')} {target.get('value')} here"
    yield False, words
    if setting.beside:
        yield False, f"{setting.beside} there"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
