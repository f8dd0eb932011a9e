"""The figures and settings of the source documents, as data, and which settings a trial is of.

`published.csv` and `settings.json` have facts only, as printed and in one unit a metric (% for
scores, h for whole runs, s for epochs, nat for losses), with what is known to be wrong with them.
Nobody here measured any of them.

Settings are in a recipe's words: `models` has for each published network the networks here that are
the same, with the fields that make them so; `settings` the arms, field by field of `Setting`. A
recipe's path skips the names of entries: `optimizer` is `adam`, `optimizer.weight_decay` is 1e-3.
`lr` is the rate of one step, whatever `lr_per_examples` says. A path that a setting lacks is one
that its source does not name.

A setting is shown next to a trial where network and data set are the same. Everything else that the
source names is compared field by field.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Literal

from tune_speed.core.records import Record, TrialRecord
from tune_speed.core.text import device_text

SOURCES = {
    "Nokhwal et al. 2023": "S. Nokhwal, P. Chilakalapudi, P. Donekal, S. Nokhwal, S. Pahune,"
    " A. Chaudhary: Accelerating Neural Network Training: A Brief Review, arXiv 2312.10024",
    "review of Nokhwal et al.": "An unsigned review of Accelerating Neural Network Training: A"
    " Brief Review, with open questions and next checks",
    "Nicka 2021": "G. Nicka: Performance Improvements of Deep Learning Networks using PyTorch,"
    " University of Bristol, August 2021",
    "Solomatov & Stepanov": "K. Solomatov, D. Stepanov: Speeding up ResNet Training, a student"
    " project mentored by D. Kang, undated",
    "blog post": "Training Time Speed Ups, a blog post without author and date",
}


class PublishedFigure(Record):
    """One figure of a source document."""

    source: str
    table: str
    model: str
    dataset: str
    setting: str
    metric: str
    value: str
    """In `unit`; text, since some are ranges or names."""
    unit: str
    printed_value: str
    printed_unit: str
    known_defect: str
    """Why it must not be taken as it is; empty where nothing is known."""
    remark: str

    @property
    def number(self) -> float | None:
        try:
            return float(self.value)
        except ValueError:
            return None

    @property
    def printed(self) -> str:
        return f"{self.printed_value} {self.printed_unit}".rstrip()


@cache
def published_figures() -> tuple[PublishedFigure, ...]:
    text = files("tune_speed.experiments.published").joinpath("published.csv").read_text("utf-8")
    return tuple(PublishedFigure.model_validate(row) for row in csv.DictReader(text.splitlines()))


def paper_listing() -> list[dict[str, Any]]:
    return [
        {
            "name": source,
            "about": title,
            "figures": len(own := [f for f in published_figures() if f.source == source]),
            "with_known_defects": sum(bool(figure.known_defect) for figure in own),
            "models": ", ".join(dict.fromkeys(figure.model for figure in own if figure.model)),
            # `both`, `most` and an empty text name no data set; the names have a hyphen.
            "datasets": ", ".join(dict.fromkeys(f.dataset for f in own if "-" in f.dataset)),
        }
        for source, title in SOURCES.items()
    ]


DATASETS_HERE: Mapping[str, str] = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
"""Published data set: its name here, or in the name of the file that it is read from."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One arm of a source: where its figures are in `published.csv`, and what was done."""

    source: str
    table: str
    model: str
    dataset: str
    setting: str
    recipe: Mapping[str, Any]
    evaluated_on: Literal["test", "validation"]
    hardware: str = ""
    """As part of a device's name; empty: not named."""
    train_images: int = 50_000
    beside: str = ""
    """What sets the arm apart that no field of a recipe says; empty where nothing is known."""
    baseline: str = ""
    """Setting that its speed-up counts from, of the same table and data set; empty: none."""


# Of Nokhwal et al. what the paper does not say is from their code: pinned memory is on in both
# arms, and nothing is clipped in the second. Solomatov & Stepanov do not name the rates of several
# devices, and their best model has another schedule than the baseline.
_DATA = json.loads(files("tune_speed.experiments.published").joinpath("settings.json").read_text())
MODELS_HERE: Mapping[str, list[tuple[str, Mapping[str, Any]]]] = _DATA["models"]
SETTINGS: tuple[Setting, ...] = tuple(Setting(**fields) for fields in _DATA["settings"])


def base_of(setting: Setting) -> Setting | None:
    """Returns the arm that a setting's speed-up counts from; None if it is none itself."""
    place = (setting.source, setting.table, setting.dataset, setting.baseline)
    bases = [s for s in SETTINGS if (s.source, s.table, s.dataset, s.setting) == place]
    own = [base for base in bases if base.model == setting.model]
    return next(iter(own or bases), None)


# --- Which settings a trial is of


COMPONENTS = ("model", "optimizer", "lr_schedule", "order", "loader")
# Published figures that are settings, not results.
PLACE = ("source", "table", "model", "dataset", "setting")
SETTING_METRICS = frozenset({"epochs", "batch_size"})
# Training images of CIFAR-10, and of CIFAR-100.
ALL_IMAGES = 50_000


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A published figure next to a trial."""

    figure: PublishedFigure
    setting: Setting
    same: tuple[str, ...]
    differs: tuple[str, ...]


def paper_rows(record: TrialRecord) -> tuple[PaperRow, ...]:
    compared = [(setting, *compare(setting, record)) for setting in settings_of(record)]
    return tuple(
        PaperRow(figure=figure, setting=setting, same=same, differs=differs)
        for setting, same, differs in sorted(compared, key=lambda each: len(each[2]))
        for figure in figures_of(setting)
    )


def settings_of(record: TrialRecord) -> tuple[Setting, ...]:
    flat, dataset = flat_recipe(record.recipe), dataset_of(record.workload)
    return tuple(
        setting
        for setting in SETTINGS
        if DATASETS_HERE[setting.dataset] == dataset
        and any(
            flat.get("model") == name
            and all(flat.get(f"model.{field}", value) == value for field, value in fields.items())
            for name, fields in MODELS_HERE[setting.model]
        )
    )


def figures_of(setting: Setting) -> tuple[PublishedFigure, ...]:
    return tuple(
        figure
        for figure in published_figures()
        if all(getattr(figure, column) == getattr(setting, column) for column in PLACE)
        and figure.metric not in SETTING_METRICS
    )


def compare(setting: Setting, record: TrialRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    is_pair = isinstance(there, list | tuple) and isinstance(here, list | tuple)
    if is_pair and len(there) == len(here):
        return all(is_same(a, b) for a, b in zip(there, here, strict=True))
    numbers = [v for v in (there, here) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        # Our rate of a step is computed (see `flat_recipe`), so that equal ones differ by rounding.
        return math.isclose(*numbers, rel_tol=1e-6)
    return bool(there == here)


def _entry(path: str, value: Any) -> dict[str, Any]:
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


def _circumstances(setting: Setting, record: TrialRecord) -> Iterator[tuple[bool, str]]:
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
