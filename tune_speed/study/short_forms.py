"""Short forms of a study file, written out as soon as it is read: values, its goal, its paths.

`goal: {maximise: accuracy, within: 60s}` becomes `target: {metric: accuracy, value: 0.001,
within_s: 60.0}` and `max_train_s: 60.0`, once overrides are known. Paths in a file start at its
folder; those of `--set`, of a call and of shipped files at the current one.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from tune_speed.core.config import Config
from tune_speed.core.targets import SHARES
from tune_speed.data import DATASETS
from tune_speed.data.datasets.decoding import STORED_MARGIN, ImageFiles
from tune_speed.study.fields import component_of, nested_of, takes_list
from tune_speed.study.mistake import Mistake, shown
from tune_speed.study.parameter import branches, is_leaf, is_number
from tune_speed.study.settings import parse_duration_s
from tune_speed.study.yaml import Source, TreePath
from tune_speed.training.recipe import Recipe


def with_whole_task(source: Source) -> Source:
    workload = source.tree.get("workload") if isinstance(source.tree, Mapping) else None
    if not isinstance(workload, Mapping):
        return source
    if is_number(workload.get("target")):
        source = source.with_value(("workload", "target"), {"value": workload["target"]})
    if isinstance(limit := workload.get("max_train_s"), str):
        with suppress(ValueError):  # The schema says what it must be.
            source = source.with_value(("workload", "max_train_s"), parse_duration_s(limit))
    return source


def with_store_size(source: Source) -> Source:
    """Returns a source whose images of several sizes are stored large enough for its recipes."""
    tree = source.tree if isinstance(source.tree, Mapping) else {}
    workload, recipe = tree.get("workload"), tree.get("recipe")
    dataset = workload.get("dataset") if isinstance(workload, Mapping) else None
    if not isinstance(dataset, Mapping) or not isinstance(recipe, Mapping):
        return source
    kind = DATASETS.get(str(dataset.get("name")))
    is_given = dataset.get("store_size") or dataset.get("image_size")
    if kind is None or not issubclass(kind, ImageFiles) or is_given:
        return source
    sizes = [*_sizes(recipe.get("image_size")), *_sizes(recipe.get("eval_size"))]
    if not sizes:
        return source
    side = math.ceil(STORED_MARGIN * max(sizes))
    return source.with_value(("workload", "dataset", "store_size"), side)


def _sizes(value: Any) -> Iterator[int]:
    """Yields the whole numbers that a field may be; what is none, the schema reports."""
    if isinstance(value, Mapping):
        value = [*(value.get("choices") or ()), value.get("high")]
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, int):
            yield each


def with_choices(source: Source) -> Source:
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


WORST_SHARE = 0.001


class GoalConfig(Config):
    """The best metric that a training of a given time reaches."""

    maximise: Annotated[str, Field(min_length=1)] | None = None
    """Metric of which more is better, such as `accuracy`."""
    minimise: Annotated[str, Field(min_length=1)] | None = None
    """Metric of which less is better, such as `loss`."""
    within: str | float = Field(union_mode="left_to_right")
    """Training time: of a run that would take longer, nothing counts."""
    worst: float | None = None
    """Worst value that counts; null: 0.001. A metric that is no share needs one, about which its
    differences are judged."""

    @field_validator("within")
    @classmethod
    def _is_duration(cls, duration: str | float) -> str | float:
        parse_duration_s(duration)
        return duration

    @model_validator(mode="after")
    def _has_one_metric(self) -> Self:
        if (self.maximise is None) == (self.minimise is None):
            raise ValueError("exactly one of maximise and minimise must be given")
        if self.worst is None and self.maximise not in SHARES:
            raise ValueError(f"worst must be given for {self.maximise or self.minimise}")
        return self

    def target(self) -> dict[str, Any]:
        return {
            "metric": self.maximise or self.minimise,
            "value": WORST_SHARE if self.worst is None else self.worst,
            "mode": "min" if self.maximise is None else "max",
            "within_s": parse_duration_s(self.within),
        }


def with_goal(source: Source) -> Source:
    goal = source.tree.get("goal") if isinstance(source.tree, Mapping) else None
    try:
        target = {} if goal is None else GoalConfig.model_validate(goal).target()
    except ValidationError:  # The schema says what is wrong.
        target = {}
    if not target:
        return source
    place = source.place(("goal",))
    source = source.with_value(("workload", "target"), target, place=place)
    return source.with_value(("workload", "max_train_s"), target["within_s"], place=place)


def goal_mistakes(source: Source) -> Iterator[Mistake]:
    tree = source.tree
    if not isinstance(tree, Mapping) or tree.get("goal") is None:
        return
    workload = tree.get("workload")
    for name in ("target", "max_train_s"):
        if isinstance(workload, Mapping) and name in workload:
            must = "must be left out where `goal` is given, which says it"
            yield Mistake(("workload", name), must, shown(workload[name]))


WEIGHTS = "weights_file"


def with_locations(source: Source, *, shipped: Path) -> Source:
    """Returns a file's `source` with absolute paths; `shipped` is the folder of shipped files."""
    # A pipe, such as `<(...)`, and a name in a message are no files with a folder.
    if source.file is None or not os.path.isfile(source.file):
        return source
    folder = Path(source.file).resolve().parent
    folder = Path.cwd() if folder.is_relative_to(shipped.resolve()) else folder
    for path, value in _locations(source.tree, ()):
        source = source.with_value(path, _joined(folder, value))
    return source


def _locations(tree: Any, path: TreePath) -> Iterator[tuple[TreePath, Any]]:
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == WEIGHTS:
            yield (*path, key), value
        elif key == "warm_start" and isinstance(value, list):
            files = [
                (i, each.get("file")) for i, each in enumerate(value) if isinstance(each, Mapping)
            ]
            local = [(i, file) for i, file in files if "://" not in str(file)]
            yield from (((*path, key, i, "file"), file) for i, file in local)
        elif key == "dataset" and isinstance(value, Mapping):
            kind = DATASETS.get(str(value.get("name")))
            fields = kind.location_fields if kind is not None else frozenset()
            yield from (((*path, key, name), value[name]) for name in fields & value.keys())
        else:
            yield from _locations(value, (*path, key))


def _joined(folder: Path, value: Any) -> Any:
    """Returns a path, or the choices of a searched one, from `folder`; all else as it is."""
    if isinstance(value, str):
        return os.path.abspath(folder / value)
    if is_leaf(value) and isinstance(choices := value.get("choices"), list):
        return {**value, "choices": [_joined(folder, choice) for choice in choices]}
    return value
