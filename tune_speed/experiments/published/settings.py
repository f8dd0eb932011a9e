"""The published settings in a recipe's words, as data: `settings.json`.

`models` has for each published network the networks here that are the same, with the fields that
make them so; `settings` the arms, field by field of `Setting`.

A recipe's path skips the names of entries: `optimizer` is `adam`, `optimizer.weight_decay` is 1e-3.
`lr` is the rate of one step, whatever `lr_per_examples` says. A path that a setting lacks is one
that its source does not name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

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
"""Every published arm that a recipe here can be."""


def base_of(setting: Setting) -> Setting | None:
    """Returns the arm that a setting's speed-up counts from; None if it is none itself."""
    place = (setting.source, setting.table, setting.dataset, setting.baseline)
    bases = [s for s in SETTINGS if (s.source, s.table, s.dataset, s.setting) == place]
    own = [base for base in bases if base.model == setting.model]
    return next(iter(own or bases), None)
