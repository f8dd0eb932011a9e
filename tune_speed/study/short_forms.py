"""Short forms of a study file, written out as soon as it is read.

| short                   | whole                                |
|-------------------------|--------------------------------------|
| `target: 0.95`          | `target: {value: 0.95}`              |
| `max_train_s: 1m`       | `max_train_s: 60.0`                  |
| `batch_size: [64, 128]` | `batch_size: {choices: [64, 128]}`   |

A list is left as it is where the field of a recipe takes a list.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tune_speed.core.config import Config
from tune_speed.study.fields import component_of, nested_of, takes_list
from tune_speed.study.parameter import branches, is_leaf, is_number
from tune_speed.study.settings import parse_duration_s
from tune_speed.study.yaml import Source, TreePath
from tune_speed.training.recipe import Recipe


def with_whole_task(source: Source) -> Source:
    """Returns `source` with the short forms of `workload` written out."""
    workload = source.tree.get("workload") if isinstance(source.tree, Mapping) else None
    if not isinstance(workload, Mapping):
        return source
    if is_number(workload.get("target")):
        source = source.with_value(("workload", "target"), {"value": workload["target"]})
    if isinstance(limit := workload.get("max_train_s"), str):
        with suppress(ValueError):  # The schema says what it must be.
            source = source.with_value(("workload", "max_train_s"), parse_duration_s(limit))
    return source


def with_choices(source: Source) -> Source:
    """Returns `source` with the bare lists of `recipe` as choices."""
    recipe = source.tree.get("recipe") if isinstance(source.tree, Mapping) else None
    for path, values in _bare_lists(Recipe, recipe, ("recipe",)):
        source = source.with_value(path, {"choices": values})
    return source


def _bare_lists(kind: type[Config], node: Any, path: TreePath) -> Iterator[tuple[TreePath, Any]]:
    if not isinstance(node, Mapping) or is_leaf(node):
        return
    for name in node.keys() & kind.model_fields.keys():
        field, value, at = kind.model_fields[name], node[name], (*path, name)
        component, nested = component_of(field), nested_of(field)
        if isinstance(value, list):
            if component is not None or not takes_list(kind, name):
                yield at, value
        elif component is not None and component.tag is None:
            below = (*at, "choices") if is_leaf(value) else at
            entries = branches(value) if is_leaf(value) else value
            for entry, fields in entries.items() if isinstance(entries, Mapping) else ():
                if entry in component.table:
                    yield from _bare_lists(component.table[entry], fields, (*below, entry))
        elif nested is not None:
            yield from _bare_lists(nested, value, at)
