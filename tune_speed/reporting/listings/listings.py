"""What there is to choose from: lists of entries, and the table of techniques, read from the code.

The items of the source documents are in `inventory.csv`, places of one separated by `; `:

| form                               | place                                                     |
|------------------------------------|-----------------------------------------------------------|
| `models.resnet50`                  | an entry of a table: models, optim, schedules, datasets,  |
|                                    | loaders, orders, speedups, metrics                        |
| `loaders.dataloader.workers`       | a field of an entry                                       |
| `recipe.precision`                 | a field of a recipe; also of `split` and `search`         |
| `search_spaces/seed_resnet50.yaml` | a file of the repository                                  |
| `tests/core/test_errors.py::test_…` | a test                                                   |
| `tune-speed train --against`       | a command                                                 |
"""

import csv
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

from pydantic import BaseModel

from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.config import Config, Table, descriptions, did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.data import DATASETS, LOADERS, ORDERS
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.crops import Centre
from tune_speed.data.augmentation.operations import Off
from tune_speed.data.split import SplitConfig
from tune_speed.reporting.table import Table as ShownTable
from tune_speed.study.fields import component_of, nested_of, properties
from tune_speed.study.settings import SearchConfig
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS

SOURCES = {
    "S0": "Nokhwal et al., Accelerating Neural Network Training: A Brief Review, arXiv 2312.10024",
    "S1": "Nicka, Performance Improvements of Deep Learning Networks using PyTorch, Bristol",
    "S2": "a review of S0, with open questions and next checks",
    "S3": "Solomatov and Stepanov, Speeding up ResNet training",
    "S4": "a blog post, Training Time Speed Ups",
}


class Item(NamedTuple):
    """One numbered thing of the inventory."""

    name: str
    where: tuple[str, ...] = ()
    """Places; none where the thing is not there: then `about` says why."""
    claim: str = ""
    """What the sources say it brings, with what is known to be wrong in that."""
    note: str = ""
    """What differs here; follows the description that the first place has in the code."""
    about: str = ""
    """One sentence in place of that description."""


INVENTORY: dict[int, Item] = {
    int(row["number"]): Item(
        row["name"],
        tuple(filter(None, row["where"].split("; "))),
        *(row[name] for name in ("claim", "note", "about")),
    )
    for row in csv.DictReader(
        (files(__package__) / "inventory.csv").read_text("utf-8").splitlines()
    )
}
"""By the number in the inventory, 1 to 121."""

BEGIN, END = "<!-- techniques -->", "<!-- /techniques -->"
"""Between these search_spaces/TECHNIQUES.md has `techniques_table`."""

SETTINGS = (
    "precision", "channels_last", "compile", "batch_size", "accumulation_steps",
    "effective_batch_size", "devices", "augmentation", "label_smoothing", "clip_norm",
    "clip_value", "loader", "order", "deterministic", "layer_decay", "head_lr_scale", "freeze",
    "reinit_head", "activation_checkpointing",
)  # fmt: skip
"""Recipe fields that are speed-ups, or trade speed for something."""

TABLES: dict[str, tuple[Table, str]] = {
    "models": (MODELS, "model"),
    "optim": (OPTIMIZERS, "optimizer"),
    "schedules": (SCHEDULES, "lr_schedule"),
    "speedups": (SPEEDUPS, "speedups"),
    "orders": (ORDERS, "order"),
    "loaders": (LOADERS, "loader"),
    "datasets": (DATASETS, "workload.dataset"),
}
"""Table of entries, and the field of a study file that names one, by name of the place."""
CONFIGS: dict[str, tuple[type[Config], str]] = {
    "recipe": (Recipe, ""),
    "split": (SplitConfig, "workload.split."),
    "search": (SearchConfig, "search."),
}
"""Config, and what precedes its fields in a study file, by name of the place."""


class Place(NamedTuple):
    """Where a thing is to be had."""

    written: str
    """As a study file or a shell has it."""
    about: str
    """One sentence from its description; empty for files, tests and commands."""


def resolve(where: str) -> Place:
    """Returns the place of an inventory's item. Raises: KeyError if the code has no such thing."""
    if "/" in where or " " in where:
        return Place(where.partition("::")[0], "")
    kind, name, *field = where.split(".")
    if kind == "metrics":
        return Place(f"{name} (metric)", first_sentence(METRICS[name].about))
    if kind in CONFIGS:
        config, before = CONFIGS[kind]
        return Place(f"{before}{name}", first_sentence(descriptions(config)[name]))
    table, slot = TABLES[kind]
    if field:
        about = descriptions(table[name])[field[0]]
        return Place(f"{slot}.{name}.{field[0]}", first_sentence(about))
    path = f"speedups.{SPEEDUPS[name].slot}" if kind == "speedups" else slot
    return Place(f"{path}: {name}", first_sentence(table[name].__doc__))


def first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def first_sentence(text: str | None) -> str:
    head, dot, _ = first_paragraph(text).partition(". ")
    return head + dot.strip()


def technique_rows() -> list[dict[str, str]]:
    """Returns a row an item of the inventory, alike neighbours in one, then what else is here."""
    rows = []
    for item, numbered in groupby(sorted(INVENTORY.items()), key=lambda entry: entry[1]):
        numbers = [number for number, _ in numbered]
        rows.append(_row("–".join(dict.fromkeys(map(str, (numbers[0], numbers[-1])))), item))
    named = {where for item in INVENTORY.values() for where in item.where}
    roots = {".".join(where.split(".")[:2]) for where in named}
    places = [f"{kind}.{name}" for kind, (table, _) in TABLES.items() for name in table]
    for where in [*places, *(f"recipe.{field}" for field in SETTINGS)]:
        if where not in roots:
            rows.append(_row("–", Item(where.rpartition(".")[2].replace("_", " "), (where,))))
    return rows


def techniques_table() -> str:
    legend = "; ".join(f"{name}: {title}" for name, title in SOURCES.items())
    rows = [
        {
            "#": row["items"],
            "what": row["name"],
            "name here": ", ".join(f"`{place}`" for place in row["where"].split(", ") if place),
            "in one line": row["about"],
            "what the sources claim": row["claim"],
        }
        for row in technique_rows()
    ]
    table = ShownTable.of_rows(rows).markdown(verbatim=True)
    return f"{table}\n\nSources: {legend}."


def _row(numbers: str, item: Item) -> dict[str, str]:
    places = [resolve(where) for where in item.where]
    about = item.about or places[0].about
    return {
        "items": numbers,
        "name": item.name,
        "where": ", ".join(dict.fromkeys(place.written for place in places)),
        "about": f"{about} {item.note}".strip(),
        "claim": item.claim,
    }


def listing(what: str) -> list[dict[str, Any]]:
    if what in LISTINGS:
        return LISTINGS[what]()
    table, _ = TABLES[{"optimizers": "optim"}.get(what, what)]
    return [{"name": name, **_described(kind)} for name, kind in table.items()]


def _speedups() -> list[dict[str, Any]]:
    by_slot = sorted(SPEEDUPS.items(), key=lambda entry: entry[1].slot)
    about = {name: first_paragraph(descriptions(Recipe).get(name)) for name in SETTINGS}
    return [
        *({"name": n, "where": f"speedups.{kind.slot}", **_described(kind)} for n, kind in by_slot),
        *({"name": n, "where": "recipe", "about": about[n], "fields": ""} for n in SETTINGS),
    ]


BATCH_MS = {
    **{"crop: random_resized": 7.6, "pad": 2.8, "flip": 3.7, "affine": 26.0, "cutout": 0.1},
    **{"auto: rand_augment": 30.7, "auto: trivial_augment": 18.1, "color_jitter": 22.1},
    **{"erasing": 2.6, "mixup": 4.0, "cutmix": 9.4},
}
"""CPU time that a change adds to a batch of 64 images at 128 px, on one thread of an AMD EPYC [ms],
by `bench_photos.py changes`: jitter of three factors of 0.4, erasing of one image in four."""


def _changes() -> dict[str, type[Config] | None]:
    """Returns the kinds of changes to images, by their places; None for those of one value."""
    kinds: dict[str, type[Config] | None] = {}
    for name, field in Augmentation.model_fields.items():
        component = component_of(field)
        if component:
            kinds |= {f"{name}: {entry}": kind for entry, kind in component.table.items()}
        else:
            kinds[name] = nested_of(field)
    return {name: kind for name, kind in kinds.items() if kind not in (Centre, Off)}


def _augmentation() -> list[dict[str, Any]]:
    texts = descriptions(Augmentation)
    about = {name: first_paragraph(text).partition(" Source: ") for name, text in texts.items()}
    rows = [
        {"name": name, **_described(kind), "source": source_of(kind)}
        if kind
        else {"name": name, "about": about[name][0], "fields": "", "source": about[name][2]}
        for name, kind in _changes().items()
    ]
    return [{**row, "batch_ms": BATCH_MS.get(row["name"])} for row in rows]


def _described(kind: type[BaseModel]) -> dict[str, str]:
    fields = (
        name if field.is_required() else f"{name}={field.default!r}"
        for name, field in kind.model_fields.items()
    )
    return {"about": first_paragraph(kind.__doc__), "fields": ", ".join(fields)}


_WORKLOAD = "{0.dataset_name}: {0.target.words}, {0.mode}, at most {0.max_train_s:g} s"
LISTINGS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "workloads": lambda: [
        {"name": name, "about": _WORKLOAD.format(each)} for name, each in WORKLOADS.items()
    ],
    "speedups": _speedups,
    "metrics": lambda: [
        {"name": name, "about": metric.about, "unit": metric.unit, "source": metric.source}
        for name, metric in METRICS.items()
    ],
    "techniques": technique_rows,
    "augmentation": _augmentation,
}
"""What is no plain table of configs."""

BOUNDS = {
    "minimum": "≥",
    "ge": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "le": "≤",
    "exclusiveMaximum": "<",
}
"""How a bound of a JSON Schema is written before its value."""


def explained(what: str, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns an entry of the listing `rows`, with its fields. Raises: ConfigError without it."""
    row = next((each for each in rows if next(iter(each.values())) == name), None)
    if row is None:
        near = did_you_mean(name, (str(next(iter(each.values()))) for each in rows))
        raise ConfigError(f"{what} have no `{name}`{near or f'; `tune-speed list {what}` has all'}")
    place = {"optimizers": "optim"}.get(what, what)
    kind = TABLES[place][0].get(name) if place in TABLES else None
    is_change = what == "augmentation"
    if is_change:
        kind = _changes()[name]
    if kind is None:
        of = Augmentation if is_change else Recipe
        is_setting = is_change or (what == "speedups" and name in SETTINGS)
        return {**row, "fields": [_field_row(of, name)]} if is_setting else dict(row)
    return {
        "name": name,
        "about": row["about"],
        "source": source_of(kind),
        "written": f"{what}.{name}" if is_change else resolve(f"{place}.{name}").written,
        "fields": [_field_row(kind, field) for field in kind.model_fields],
    }


def source_of(kind: type[Config]) -> str:
    """Returns what a docstring says after `Source:`, in one line; empty if it names none."""
    text = inspect.getdoc(kind) or ""
    return " ".join(text.partition("Source: ")[2].split("\n\n")[0].split())


def _field_row(kind: type[Config], name: str) -> dict[str, Any]:
    schema, is_required = properties(kind)[name], kind.model_fields[name].is_required()
    component = component_of(kind.model_fields[name])
    options = [{"enum": list(component.table)}] if component else schema.get("anyOf", [schema])
    return {
        "field": name,
        "type": " or ".join(dict.fromkeys(map(_type, options))),
        "range": " or ".join(filter(None, map(_range, options))),
        "default": "must be given" if is_required else json.dumps(schema.get("default")),
        "about": " ".join(descriptions(kind).get(name, "").split()),
    }


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "component"))


def _range(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return _range(schema["items"])
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(map(str, values))
    return ", ".join(f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema)
