"""The figures and settings of the source documents, as data: `published.csv`, `settings.json`.

Facts only, as printed and in one unit a metric, with what is known to be wrong with them. Nobody
here measured any of them.

| column        | what it holds                                                                |
|---------------|------------------------------------------------------------------------------|
| source        | short citation, a key of `SOURCES`                                           |
| table         | table or section of the source                                               |
| model         | network as the source names it; empty where none is meant                    |
| dataset       | `CIFAR-10`, `CIFAR-100`, `both`, `most`, or empty                            |
| setting       | which of the source's arms; empty where it does not say                      |
| metric        | what was measured or set                                                     |
| value, unit   | in our unit: % for scores, h for whole runs, s for epochs, nat for losses    |
| printed_value | as the source has it; unit beside it (`h:mm` is 2:42 for 162 minutes)        |
| known_defect  | why the figure must not be taken as it is; empty where nothing is known      |
| remark        | what belongs to it otherwise                                                 |

Settings are in a recipe's words: `models` has for each published network the networks here that are
the same, with the fields that make them so; `settings` the arms, field by field of `Setting`. A
recipe's path skips the names of entries: `optimizer` is `adam`, `optimizer.weight_decay` is 1e-3.
`lr` is the rate of one step, whatever `lr_per_examples` says. A path that a setting lacks is one
that its source does not name.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tune_speed.core.records import Record

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
    """A key of `SOURCES`."""
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
        """The value as the source has it, such as `93.07 %`."""
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
"""Published network: the networks here that are the same, with the fields that make them so."""
SETTINGS: tuple[Setting, ...] = tuple(Setting(**fields) for fields in _DATA["settings"])


def base_of(setting: Setting) -> Setting | None:
    """Returns the arm that a setting's speed-up counts from; None if it is none itself."""
    place = (setting.source, setting.table, setting.dataset, setting.baseline)
    bases = [s for s in SETTINGS if (s.source, s.table, s.dataset, s.setting) == place]
    own = [base for base in bases if base.model == setting.model]
    return next(iter(own or bases), None)
