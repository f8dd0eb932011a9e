"""The figures and settings of the source documents, as data.

`published.csv` and `settings.json` have facts only, as printed and in one unit a metric (% for
scores, h for whole runs, s for epochs, nat for losses), with what is known to be wrong with them.
Nobody here measured any of them.

Of `settings.json`, `sources` has the citations; `metrics` ours of each published metric, or several
where the source does not say which it is: name, our metric, what turns its unit into that of the
published figures, and why the two are not measured alike; `models` the networks here that are the
same as a published one, with the fields that make them so; `settings` the arms, field by field of
`Setting`, in a recipe's words: `optimizer` is `adam`, `optimizer.weight_decay` is 1e-3, and `lr`
the rate of one step, whatever `lr_per_examples` says. A path that a setting lacks is one that its
source does not name.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tune_speed.core.records import Record

FOLDER = files("tune_speed.experiments.published")
PLACE = ("source", "table", "model", "dataset", "setting")


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
_DATA = json.loads(FOLDER.joinpath("settings.json").read_text("utf-8"))
SOURCES: Mapping[str, str] = _DATA["sources"]
METRICS_HERE: Mapping[str, list[tuple[str, str, float, str]]] = _DATA["metrics"]
MODELS_HERE: Mapping[str, list[tuple[str, Mapping[str, Any]]]] = _DATA["models"]
SETTINGS: tuple[Setting, ...] = tuple(Setting(**fields) for fields in _DATA["settings"])


@cache
def published_figures() -> tuple[PublishedFigure, ...]:
    rows = csv.DictReader(FOLDER.joinpath("published.csv").read_text("utf-8").splitlines())
    return tuple(PublishedFigure.model_validate(row) for row in rows)


def figures_of(setting: Setting) -> dict[str, PublishedFigure]:
    """Returns the figures of an arm by metric."""
    place = [getattr(setting, column) for column in PLACE]
    found = (f for f in published_figures() if [getattr(f, column) for column in PLACE] == place)
    return {figure.metric: figure for figure in found}


def base_of(setting: Setting) -> Setting | None:
    """Returns the arm that a setting's speed-up counts from; None if it is none itself."""
    place = (setting.source, setting.table, setting.dataset, setting.baseline)
    bases = [s for s in SETTINGS if (s.source, s.table, s.dataset, s.setting) == place]
    return next((s for s in bases if s.model == setting.model), next(iter(bases), None))


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
