"""Values that filters read of a trial by name: columns of its result, settings of its recipe."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tune_speed.core.config import flatten
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord, named_settings
from tune_speed.tracking.columns import COLUMNS

# Fields of a recipe at its top. These names never mean a field further down.
RECIPE_FIELDS = (
    *("model", "optimizer", "lr_schedule", "epochs", "batch_size", "accumulation_steps"),
    *("effective_batch_size", "devices", "precision", "init_loss_scale", "loss_scale_growth_steps"),
    *("order", "drop_last", "image_size", "eval_size", "crop_pct", "augmentation"),
    *("class_weights", "label_smoothing", "clip_norm", "clip_value", "speedups", "loader"),
    *("layer_decay", "head_lr_scale", "freeze", "reinit_head", "activation_checkpointing"),
    *("channels_last", "compile", "compile_mode", "cuda_graph", "optimizer_kernels"),
    *("deterministic", "matmul_precision"),
)


class FieldReader:
    """Reads values of a record by name.

    A name is, in this order: a column of results; the place of a setting of the recipe that ran;
    the place of a choice (`optimizer` is `sgd`); another searched parameter; the last part of a
    place (`lr`).
    """

    def __init__(self, record: TrialRecord) -> None:
        self.record = record

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Settings and choices by dotted place; a number is always one of the recipe that ran."""
        searched = {k: v for k, v in self.record.params.items() if isinstance(v, str | bool)}
        return {**searched, **settings_of(self.record.recipe)}

    def value(self, name: str) -> Any:
        """Returns the value or None. Raises: ConfigError if `name` may mean several places."""
        if name in COLUMNS:
            return COLUMNS[name].value(self.record)
        places = self._places(name)
        if len(places) > 1:
            raise ConfigError(
                f"`{name}` must name one setting, but the recipe of {self.record.study}/"
                f"{self.record.trial_id} has {', '.join(places)}. Give the whole name."
            )
        return self.settings[places[0]] if places else None

    def knows(self, name: str) -> bool:
        return name in COLUMNS or name in RECIPE_FIELDS or bool(self._places(name))

    def names(self) -> set[str]:
        last_parts = {place.rpartition(".")[2] for place in self.settings}
        return {*COLUMNS, *RECIPE_FIELDS, *self.settings, *last_parts}

    def _places(self, name: str) -> list[str]:
        if name in self.settings:
            return [name]
        if name in RECIPE_FIELDS:
            return []
        return [place for place in self.settings if place.rpartition(".")[2] == name]


def settings_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's settings and choices by dotted place: `optimizer`, `optimizer.sgd.lr`."""
    named = named_settings(recipe)
    return {**_choices(named), **flatten(named)}


def _choices(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            continue
        if len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
            found[f"{prefix}{key}"] = str(next(iter(value)))
        found.update(_choices(value, f"{prefix}{key}."))
    return found
