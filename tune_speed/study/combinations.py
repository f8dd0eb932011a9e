"""Checks the rules between fields of a recipe, on the corners of its search space."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from tune_speed.core.config import Config
from tune_speed.study.fields import component_of, must_text, nested_of, split_hint
from tune_speed.study.mistake import Mistake
from tune_speed.study.parameter import branches, is_leaf
from tune_speed.study.space import Params, SearchSpace
from tune_speed.study.yaml import TreePath
from tune_speed.training.recipe import Recipe


def combination_mistakes(space: SearchSpace, path: TreePath, *, has_gpu: bool) -> Iterator[Mistake]:
    """Yields each rule of `Recipe` that some corner of `space`, which lies at `path`, breaks.

    Each field by itself must be right already.
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
                rule = _named_path(tree, detail["loc"]), must_text(detail)
                broken.setdefault(rule, []).append(params)
            continue
        if not has_gpu and (reason := recipe.needs_cuda()) is not None:
            field = tuple(name for name in reason.split()[:1] if name in Recipe.model_fields)
            broken.setdefault((field, reason), []).append(params)
    for (names, must), cases in broken.items():
        shared = {k: v for k, v in cases[0].items() if all(k in c and c[k] == v for c in cases)}
        values = ", ".join(f"{name}={value}" for name, value in (shared or cases[0]).items())
        # What every corner breaks does not depend on what is searched: no value is to blame.
        given = values if len(cases) < num_corners else None
        text, hint = split_hint(must)
        yield Mistake((*path, *written_path(space.tree, names)), text, given, hint)


def _with_components(tree: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Returns `tree` with its components validated; `known` caches them."""
    validated = dict(tree)
    for name, field in Recipe.model_fields.items():
        component = component_of(field)
        # Each component is validated once for all corners: looking up a model takes time.
        if component is not None and name in tree:
            key = json.dumps([name, tree[name]])
            if key not in known:
                kind, fields = component.split(tree[name])
                try:
                    known[key] = component.table[kind].model_validate(dict(fields))
                except pydantic.ValidationError:  # The recipe reports its mistakes.
                    known[key] = tree[name]
            validated[name] = known[key]
    return validated


def _named_path(tree: Any, loc: tuple[int | str, ...]) -> TreePath:
    """Returns pydantic's `loc` with the names of components, which it leaves out."""
    path: list[int | str] = []
    kind: type[Config] | None = Recipe
    for part in loc:
        path.append(part)
        field = kind.model_fields.get(part) if kind and isinstance(part, str) else None
        tree = tree.get(part) if field and isinstance(tree, Mapping) else None
        component = component_of(field) if field else None
        if component is not None and tree is not None:
            name, tree = component.split(tree)
            path.append(name)
            kind = component.table[name]
        else:
            kind = nested_of(field) if field else None
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
