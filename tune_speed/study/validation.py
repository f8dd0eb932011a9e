"""Finds every mistake of a study file's tree, field by field and on the corners of its space."""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from tune_speed.components.plugins.distributions import missing_plugin
from tune_speed.core.config import Component, Config
from tune_speed.core.errors import ConfigError, DataError, Problem
from tune_speed.core.folders import STUDY_NAME
from tune_speed.core.text import setting
from tune_speed.study import fields
from tune_speed.study.mistake import Mistake, near_miss, shown
from tune_speed.study.parameter import branches, is_leaf
from tune_speed.study.schema import StudySchema
from tune_speed.study.settings import SearchConfig
from tune_speed.study.space import Params, SearchSpace, point_mistakes
from tune_speed.study.yaml import Source, TreePath
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS, Workload


def most_devices(space: SearchSpace) -> int:
    searched = [parameter for parameter in space.parameters if parameter.name == "devices"]
    ends = searched[0].ends() if searched else (space.tree.get("devices", 1),)
    return max(int(end or 1) for end in ends)


def devices_mistakes(space: SearchSpace, search: Mapping[str, Any]) -> Iterator[Mistake]:
    if most_devices(space) == 1:
        return
    if search.get("concurrent") == "auto":
        must = "must be a number where recipe.devices may exceed 1, as such trials share no device"
        yield Mistake(("search", "concurrent"), must, "auto", "Try 1.")
    gpu = (search.get("resources") or {}).get("gpu", 0)
    if gpu == int(gpu):
        return
    must = "must be a whole number where recipe.devices may exceed 1, as each has a GPU to itself"
    yield Mistake(("search", "resources", "gpu"), must, shown(gpu), "Try 1.")


# Why nothing may be searched in a section, where there is a better reason than the usual one.
_FIXED = {
    "workload": "recipes are compared on it, so no search may touch it",
    "ablate": "its axes say what is varied",
}

TABLE_AT: Mapping[tuple[int | str, ...], str] = {
    ("workload", "dataset"): "DATASETS",
    ("recipe", "model"): "MODELS",
    ("recipe", "optimizer"): "OPTIMIZERS",
    ("recipe", "lr_schedule"): "SCHEDULES",
    ("recipe", "speedups"): "SPEEDUPS",
}
"""The tables that plugins add to, by the field that names an entry."""

_SEEN = (
    "lr_schedule must not follow the validation loss with certify_on: train+validation, where"
    " that is a loss of images trained on: use one of fixed steps, or certify_on: train"
)

Found = Mapping[str, list[Mistake]]


def study_mistakes(source: Source, *, check_data: bool) -> Iterator[Mistake]:
    """Yields every mistake of a study to be searched; `check_data` reads the size of its data."""
    tree, found = source.tree, _found(source)
    yield from _form_mistakes(source, found, check_data=check_data)
    if found.get("recipe") == [] and not found.get("search"):
        search = tree.get("search") or {}
        space = SearchSpace.from_tree(tree["recipe"])
        has_gpu = (search.get("resources") or {}).get("gpu", 0) > 0
        workload = tree.get("workload")
        certify_on = workload.get("certify_on") if isinstance(workload, Mapping) else None
        yield from combination_mistakes(
            space, ("recipe",), has_gpu=has_gpu, has_unseen=certify_on != "train+validation"
        )
        for path, value in _values(tree["recipe"].get("batch_size"), ("recipe", "batch_size")):
            if value == "auto":  # It would hide the steps of a run.
                must = (
                    "must be a number in a search, which knows what a trial costs before it starts"
                )
                hint = "Try `effective_batch_size` with `accumulation_steps: auto`."
                yield Mistake(path, must, shown(value), hint)
        points = search.get("points_to_evaluate", ())
        yield from point_mistakes(space, points, ("search", "points_to_evaluate"))
        yield from devices_mistakes(space, search)
        if search.get("sampler") == "grid":
            yield from grid_mistakes(space)
    if found.get("search") == []:
        yield from policy_mistakes(tree["search"] or {})
    if found.get("workload") == found.get("search", []) == []:
        yield from _goal_mistakes(tree)


def recipe_mistakes(source: Source, *, check_data: bool) -> Iterator[Mistake]:
    tree, found = source.tree, _found(source)
    yield from _form_mistakes(source, found, check_data=check_data)
    if found:
        yield from _searched(tree.get("recipe"), ("recipe",))
    if found.get("recipe") == []:
        # Only `device: cpu` says for certain that no GPU trains it; `auto` may find one.
        is_cpu = not found.get("run") and (tree.get("run") or {}).get("device") == "cpu"
        space = SearchSpace.from_tree(tree["recipe"])
        yield from combination_mistakes(space, ("recipe",), has_gpu=not is_cpu)


_NO_FUNCTION = Mistake(
    ("workload", "dataset"),
    "must be given where no training function is",
    hint="A study of a function's values needs the function: `tune-speed search STUDY --train"
    " FILE.py:FUNCTION`, or `train=` in Python.",
)


def _is_of_function(tree: Mapping[str, Any]) -> bool:
    workload, recipe = tree.get("workload"), tree.get("recipe")
    if not isinstance(workload, Mapping) or not isinstance(recipe, Mapping) or not recipe:
        return False
    has_data = "dataset" in workload or "split" in workload
    return not has_data and not ("model" in recipe and recipe.keys() <= Recipe.model_fields.keys())


def _found(source: Source) -> Found:
    is_ours = isinstance(source.tree, Mapping) and not _is_of_function(source.tree)
    tree = source.tree if is_ours else {}
    # Plugins that a file needs may lie next to it.
    folders = [Path.cwd(), *([Path(source.file).parent] if source.file else [])]
    return {
        name: [_with_plugin(mistake, folders) for mistake in _section_mistakes(name, tree[name])]
        for name in StudySchema.model_fields
        if name in tree
    }


def _with_plugin(mistake: Mistake, folders: Sequence[Path]) -> Mistake:
    table = TABLE_AT.get(tuple(mistake.path[:2]))
    if table is None or mistake.given is None or not mistake.is_unknown:
        return mistake
    hint = missing_plugin(table, mistake.given.strip('"'), folders=folders)
    return mistake if hint is None else mistake._replace(hint=hint)


def _section_mistakes(section: str, value: Any) -> Iterator[Mistake]:
    if section == "workload" and isinstance(value, str):
        must = f"must be a mapping of fields, or one of {', '.join(WORKLOADS)}"
        yield Mistake((section,), must, shown(value), near_miss(value, WORKLOADS))
        return
    fixed = None if section == "recipe" else _FIXED.get(section, "only the recipe is searched")
    yield from section_mistakes(StudySchema, section, value, fixed=fixed)


def section_mistakes(
    schema: type[Config], section: str, value: Any, *, fixed: str | None
) -> Iterator[Mistake]:
    """Yields what is wrong with the fields of a section or else with the rules between them."""
    mistakes = list(fields.field_mistakes(schema, section, value, (section,), fixed=fixed))
    yield from mistakes
    # A recipe's rules depend on what is chosen together: its space's corners are checked instead.
    if section == "recipe" or mistakes:
        return
    try:
        schema.model_validate({section: value})
    except pydantic.ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["loc"][:1] == (section,):
                yield _of_field(detail["loc"], fields.must_text(detail), value)


def _of_field(path: TreePath, text: str, section: Any) -> Mistake:
    node = section
    for name in path[1:]:
        node = node[name]
    name, _, rest = text.partition(" ")
    if not isinstance(node, Mapping) or name not in node:
        return Mistake(path, text)
    must, hint = fields.split_hint(rest)
    return Mistake((*path, name), must, shown(node[name]), hint)


def _form_mistakes(source: Source, found: Found, *, check_data: bool) -> Iterator[Mistake]:
    tree = source.tree
    if not isinstance(tree, Mapping):
        yield from fields.config_mistakes(StudySchema, tree, ())
        return
    if _is_of_function(tree):
        yield _NO_FUNCTION
        return
    yield from fields.name_mistakes(StudySchema, tree, ())
    for mistakes in found.values():
        yield from mistakes
    # Without `study` the file's name is the study's, and so that of its folder.
    if tree.get("study") is None and not re.fullmatch(STUDY_NAME, source.stem):
        hint = "Give the study a name: `study: NAME`."
        yield Mistake((), f"a file's name must match {STUDY_NAME}", shown(source.stem), hint)
    in_data = [m for m in found.get("workload", []) if m.path[1:2] not in _NOT_DATA]
    if check_data and not in_data and isinstance(tree.get("workload"), Mapping):
        yield from _data_mistakes(tree)


_NOT_DATA = {(name,) for name in Workload.model_fields if name not in ("dataset", "split")}


def _data_mistakes(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    data = {n: part for n, part in tree["workload"].items() if n in ("dataset", "split")}
    if "dataset" not in data:
        return
    try:
        # The target does not matter here; the one that was given may be wrong.
        num_train = Workload.model_validate({**data, "target": {"value": 1.0}}).sizes().train
    # Reported as one mistake of many: missing data must not hide the others.
    except DataError as error:
        yield Mistake(("workload", "dataset"), str(error).rstrip("."), is_data=True)
    except ConfigError as error:
        for problem in error.problems or [Problem(path="dataset", must=str(error).rstrip("."))]:
            at = ("workload", *problem.path.split("."))
            yield Mistake(at, problem.must, problem.given, problem.hint)
    else:
        recipe = tree.get("recipe")
        written = recipe if isinstance(recipe, Mapping) else {}
        names = ("batch_size", "effective_batch_size")
        sizes = (each for name in names for each in _values(written.get(name), ("recipe", name)))
        for path, value in sizes:
            if isinstance(value, int) and value > num_train:
                must = f"must be at most {num_train}, the size of the training part"
                yield Mistake(path, must, shown(value))


def _values(node: Any, path: TreePath) -> Iterator[tuple[TreePath, Any]]:
    if not is_leaf(node):
        yield path, node
        return
    yield from (((*path, key), node[key]) for key in ("low", "high") if key in node)
    choices = node.get("choices")
    if isinstance(choices, list):
        yield from (((*path, "choices", i), value) for i, value in enumerate(choices))


# Settings that only the default policy has, and what the others do instead.
_OF_DEFAULT_POLICY = {
    "sampler": "brings its own",
    "points_to_evaluate": "proposes by itself from the start",
    "warm_start": "learns from this study alone",
    "storage": "keeps its trials in memory",
    "until": "does not know what it may still find",
}


def policy_mistakes(search: Mapping[str, Any]) -> Iterator[Mistake]:
    own = {name: field.default for name, field in SearchConfig.model_fields.items()}
    policy = search.get("policy", own["policy"])
    if policy == own["policy"]:
        return
    for name, instead in _OF_DEFAULT_POLICY.items():
        value = search.get(name, own[name])
        if value != own[name]:
            must = f"must be left out with `policy: {policy}`, which {instead}"
            hint = f"Leave out one of the two; `policy: {own['policy']}` takes this."
            yield Mistake(("search", name), must, shown(value), hint)


def _goal_mistakes(tree: Mapping[str, Any]) -> Iterator[Mistake]:
    workload, search = tree.get("workload"), tree.get("search") or {}
    target = workload.get("target") if isinstance(workload, Mapping) else None
    if not isinstance(target, Mapping) or not target.get("within_s"):
        return
    for name in ("storage", "until"):
        if search.get(name) is not None:
            must = "must be left out with a goal, searched by the default alone"
            yield Mistake(("search", name), must, shown(search[name]), "Give a target instead.")


def grid_mistakes(space: SearchSpace) -> Iterator[Mistake]:
    try:
        space.grid()
    except ConfigError as error:
        for problem in error.problems:
            path = ("recipe", *written_path(space.tree, tuple(problem.path.split("."))))
            yield Mistake(path, problem.must, problem.given, problem.hint)


def _searched(node: Any, path: TreePath) -> Iterator[Mistake]:
    if is_leaf(node):
        name = ".".join(str(part) for part in path[1:])
        hint = f"Fix it with `{setting(name, 'VALUE')}`, or run `tune-speed search`."
        yield Mistake(path, "must be one value to train with", shown(node), hint)
    elif isinstance(node, Mapping):
        for key, child in node.items():
            yield from _searched(child, (*path, str(key)))


def combination_mistakes(
    space: SearchSpace, path: TreePath, *, has_gpu: bool, has_unseen: bool = True
) -> Iterator[Mistake]:
    """Yields each rule of `Recipe` that some corner of `space`, which lies at `path`, breaks.

    Each field by itself must be right already. `has_unseen`: no run trains on the validation part.
    """
    broken: dict[tuple[TreePath, str], list[Params]] = {}
    components: dict[str, Any] = {}
    num_corners = 0
    for params in space.corners():
        num_corners += 1
        tree = space.build(params)
        try:
            recipe = Recipe.model_validate(_with_components(tree, components))
        except pydantic.ValidationError as error:
            for detail in error.errors(include_url=False):
                rule = _named_path(tree, detail["loc"]), fields.must_text(detail)
                broken.setdefault(rule, []).append(params)
            continue
        reasons = [None if has_gpu else recipe.needs_cuda()]
        reasons += [_SEEN] if recipe.lr_schedule.follows_loss and not has_unseen else []
        for reason in filter(None, reasons):
            field = tuple(name for name in reason.split()[:1] if name in Recipe.model_fields)
            broken.setdefault((field, reason), []).append(params)
    for (names, must), cases in broken.items():
        shared = {k: v for k, v in cases[0].items() if all(k in c and c[k] == v for c in cases)}
        values = ", ".join(f"{name}={value}" for name, value in (shared or cases[0]).items())
        # What every corner breaks does not depend on what is searched: no value is to blame.
        given = values if len(cases) < num_corners else None
        text, hint = fields.split_hint(must)
        yield Mistake((*path, *written_path(space.tree, names)), text, given, hint)


def _with_components(tree: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    validated = dict(tree)
    for name, component in _component_fields().items():
        # Each component is validated once for all corners: looking up a model takes time.
        if name in tree:
            key = json.dumps([name, tree[name]])
            if key not in known:
                kind, settings = component.split(tree[name])
                try:
                    known[key] = component.table[kind].model_validate(dict(settings))
                except pydantic.ValidationError:  # The recipe reports its mistakes.
                    known[key] = tree[name]
            validated[name] = known[key]
    return validated


@functools.cache
def _component_fields() -> dict[str, Component]:
    found = {name: fields.component_of(field) for name, field in Recipe.model_fields.items()}
    return {name: component for name, component in found.items() if component is not None}


def _named_path(tree: Any, loc: tuple[int | str, ...]) -> TreePath:
    path: list[int | str] = []
    kind: type[Config] | None = Recipe
    for part in loc:
        path.append(part)
        field = kind.model_fields.get(part) if kind and isinstance(part, str) else None
        tree = tree.get(part) if field and isinstance(tree, Mapping) else None
        component = fields.component_of(field) if field else None
        if component is not None and tree is not None:
            name, tree = component.split(tree)
            path.append(name)
            kind = component.table[name]
        else:
            kind = fields.nested_of(field) if field else None
    return tuple(path)


def written_path(tree: Any, names: TreePath) -> TreePath:
    """Returns the path of a dotted name in a tree as it was written, as far as it is there."""
    path: list[int | str] = []
    for name in names:
        if is_leaf(tree):
            path.append("choices")
            tree = branches(tree)
        if not isinstance(tree, Mapping) or name not in tree:
            break
        path.append(name)
        tree = tree[name]
    return tuple(path)
