"""What there is to choose from: a name and a line on each entry of the tables of a recipe."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.config import Table
from tune_speed.core.descriptions import descriptions
from tune_speed.data import DATASETS, LOADERS, ORDERS
from tune_speed.reporting.listings.techniques import SETTINGS, first_paragraph, technique_rows
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS

TABLES: dict[str, Table] = {
    "models": MODELS,
    "optimizers": OPTIMIZERS,
    "schedules": SCHEDULES,
    "datasets": DATASETS,
    "loaders": LOADERS,
    "orders": ORDERS,
}


def listing(what: str) -> list[dict[str, Any]]:
    """Returns name and one line on each entry of a table, with its fields."""
    if what in LISTINGS:
        return LISTINGS[what]()
    return [
        {"name": name, "about": first_paragraph(kind.__doc__), "fields": ", ".join(_fields(kind))}
        for name, kind in TABLES[what].items()
    ]


def _workloads() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "about": f"{workload.dataset_name}: {workload.target.words}, {workload.mode},"
            f" at most {workload.max_train_s:g} s",
        }
        for name, workload in WORKLOADS.items()
    ]


def _speedups() -> list[dict[str, Any]]:
    """Returns the speed-ups by slot, then the plain settings of a recipe."""
    by_slot = sorted(SPEEDUPS.items(), key=lambda entry: entry[1].slot)
    techniques = [
        {
            "name": name,
            "where": f"speedups.{kind.slot}",
            "about": first_paragraph(kind.__doc__),
            "fields": ", ".join(_fields(kind)),
        }
        for name, kind in by_slot
    ]
    about = descriptions(Recipe)
    return techniques + [
        {"name": name, "where": "recipe", "about": first_paragraph(about.get(name)), "fields": ""}
        for name in SETTINGS
    ]


LISTINGS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "workloads": _workloads,
    "speedups": _speedups,
    "metrics": lambda: [
        {"name": name, "about": metric.about, "unit": metric.unit, "source": metric.source}
        for name, metric in METRICS.items()
    ],
    "techniques": technique_rows,
}
"""What is no plain table of configs."""


def _fields(kind: type[BaseModel]) -> list[str]:
    return [
        name if field.is_required() else f"{name}={field.default!r}"
        for name, field in kind.model_fields.items()
    ]
