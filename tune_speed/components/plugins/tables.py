"""The tables that plugins add to, and what an entry of each must be."""

from types import ModuleType
from typing import Any, NamedTuple

from tune_speed.components.metrics import METRICS, Metric
from tune_speed.components.models import MODELS, ModelConfig
from tune_speed.components.optim import OPTIMIZERS, OptimizerConfig
from tune_speed.components.schedules import SCHEDULES, ScheduleConfig
from tune_speed.components.speedups import SPEEDUPS, SpeedupConfig
from tune_speed.components.speedups.base import Off
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.core.config import Component
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig


class PluginTable(NamedTuple):
    """One of our tables."""

    entries: dict[str, Any]
    """What is in it now; every `Component` holds it by reference."""
    base: type
    """What its entries derive from; of metrics, what they are instances of."""
    noun: str
    """An entry, for messages."""
    group: str
    """Group of a distribution's entry points."""

    def taken(self) -> dict[str, Any]:
        """Returns all that a name can mean in YAML; in a slot, `off` means nothing."""
        return {"off": Off, **self.entries} if self.entries is SPEEDUPS else self.entries


TABLES: dict[str, PluginTable] = {
    "MODELS": PluginTable(MODELS, ModelConfig, "model", "tune_speed.models"),
    "DATASETS": PluginTable(DATASETS, DatasetConfig, "data set", "tune_speed.datasets"),
    "OPTIMIZERS": PluginTable(OPTIMIZERS, OptimizerConfig, "optimizer", "tune_speed.optimizers"),
    "SCHEDULES": PluginTable(SCHEDULES, ScheduleConfig, "schedule", "tune_speed.schedules"),
    "SPEEDUPS": PluginTable(SPEEDUPS, SpeedupConfig, "speed-up", "tune_speed.speedups"),
    "METRICS": PluginTable(METRICS, Metric, "metric", "tune_speed.metrics"),
}
"""By the name that a plugin's dict has, which is also ours."""

Entries = dict[str, dict[str, Any]]
"""Entries by table and name."""


def tables_of(module: ModuleType) -> Entries:
    return {name: vars(module)[name] for name in TABLES if name in vars(module)}


def add(entries: Entries, *, source_hash: str) -> None:
    for table, kinds in entries.items():
        TABLES[table].entries.update(kinds)
    # What one source has decoded is none of another's.
    for kind in entries.get("DATASETS", {}).values():
        kind.plugin_source = source_hash
    for name, kind in entries.get("SPEEDUPS", {}).items():
        _slot_table(kind.slot)[name] = kind


def remove(entries: Entries) -> None:
    for table, kinds in entries.items():
        for name in kinds:
            del TABLES[table].entries[name]
    for name, kind in entries.get("SPEEDUPS", {}).items():
        del _slot_table(kind.slot)[name]


def _slot_table(slot: str) -> dict[str, Any]:
    marks = Speedups.model_fields[slot].metadata
    (table,) = (mark.table for mark in marks if isinstance(mark, Component))
    assert isinstance(table, dict)
    return table
