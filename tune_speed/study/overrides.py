"""`--set path=value`: a field's dotted name, without `recipe.` or the only component's name too."""

from collections.abc import Iterable, Mapping
from typing import Any

from tune_speed.core.config import Component, Config, did_you_mean
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.renamed import LEFT, LEFT_MUST, PRESENT
from tune_speed.core.text import SET, setting
from tune_speed.study.fields import component_of, nested_of
from tune_speed.study.mistake import shown
from tune_speed.study.parameter import LEAF_KEYS, branches, is_leaf
from tune_speed.study.yaml import Place, Source, TreePath, parse_yaml


def apply_overrides(
    source: Source, overrides: Iterable[str], *, schema: type[Config]
) -> tuple[Source, list[Problem]]:
    """Returns `source` with each `path=value` set, by the fields of `schema`, and what is wrong."""
    problems: list[Problem] = []
    for override in overrides:
        place = Place(SET + override, None)
        try:
            source = _with_override(source, override, place, schema)
        except ConfigError as error:
            problems += error.problems or [Problem(path="", must=str(error), file=place.file)]
    return source, problems


def _with_override(source: Source, override: str, place: Place, schema: type[Config]) -> Source:
    written, value = read_override(override)
    if left := next((each for each in LEFT if (each.path, each.value) == (written, None)), None):
        given, hint = shown(value), left.instead
        raise ConfigError.of(written, LEFT_MUST, given=given, hint=hint, file=place.file)
    names = written.split(".")
    # A section's name wins over a recipe field's: `recipe.` then says which is meant.
    prefix = () if names[0] in schema.model_fields else ("recipe",)
    walk = _Walk(source, num_hidden=len(prefix), sections=schema)
    path = walk.to((), schema, [*prefix, *names])
    return walk.source.with_value(path, value, place=place)


def read_override(override: str) -> tuple[str, Any]:
    """Returns path and value of `path=value`. Raises: ConfigError if it is not of that form."""
    written, equals, text = override.partition("=")
    if not equals or not all(written.strip().split(".")):
        raise ConfigError("must be written as path=value")
    if not text.strip():
        raise ConfigError(f"must have a value after `=`; try `{written}=null` for none")
    try:
        # Parsed as YAML, so that `2`, `null` and `[1, 2]` mean what they mean in a file.
        return written.strip(), parse_yaml(text).tree
    except ConfigError as error:
        musts = "; ".join(problem.must for problem in error.problems)
        raise ConfigError(f"the value {musts}") from None


class _Walk:
    """Finds the tree path of a dotted name, and writes short forms out on its way."""

    def __init__(self, source: Source, *, num_hidden: int, sections: type[Config]) -> None:
        self.source, self._sections = source, sections
        self._num_hidden = num_hidden
        self._seen: list[str] = []

    def to(self, path: TreePath, kind: type[Config], names: list[str]) -> TreePath:
        name, *rest = names
        if name not in kind.model_fields:
            raise self._no_field(name, kind.model_fields)
        self._seen.append(name)
        path = (*path, name)
        if not rest:
            return path
        if component := component_of(kind.model_fields[name]):
            return self._to_component(path, component, rest)
        if nested := nested_of(kind.model_fields[name]):
            return self.to(path, nested, rest)
        return self._to_written(path, rest)

    def _to_written(self, path: TreePath, names: list[str]) -> TreePath:
        node, (name, *rest) = self._node(path), names
        if is_leaf(node) and names in [[key] for key in LEAF_KEYS]:
            return (*path, name)
        below = branches(node) if is_leaf(node) else node
        below = below if isinstance(below, Mapping) else {}
        if name not in below:
            raise self._no_field(name, LEAF_KEYS if is_leaf(node) else map(str, below))
        self._seen.append(name)
        path = (*path, "choices", name) if is_leaf(node) else (*path, name)
        return self._to_written(path, rest) if rest else path

    def _to_component(self, path: TreePath, component: Component, names: list[str]) -> TreePath:
        written = self._entries(path, component)
        entries = {name: at for name, at in written.items() if name in component.table}
        named = names[0] in component.table
        if not named and PRESENT.get(names[0]) in component.table:
            near = did_you_mean(names[0], component.table)
            raise ConfigError(f"no entry `{self._shown(names[0])}`{near}")
        known = list(entries or component.table)
        if not named and len(known) > 1:
            full_names = ", ".join(f"`{self._shown(name)}`" for name in known)
            raise ConfigError(f"`{self._shown()}` must be followed by a name: {full_names}")
        entry = names[0] if named else known[0]
        if named and entries and entry not in entries:
            must = f"`{self._shown()}` must be {entry}, but is {', '.join(entries)}"
            raise ConfigError(f"{must}; try `{setting(self._shown(), entry)}` before it")
        path = entries.get(entry, (*path, entry))
        if named:
            self._seen.append(entry)
            names = names[1:]
        return self.to(path, component.table[entry], names) if names else path

    def _entries(self, path: TreePath, component: Component) -> dict[str, TreePath]:
        node = self._node(path)
        if is_leaf(node):
            at = (*path, "choices")
            if branches(node) is None:
                choices = node.get("choices")
                names = choices if isinstance(choices, list) else []
                self.source = self.source.with_value(at, {str(name): {} for name in names})
            return {name: (*at, name) for name in branches(self._node(path)) or {}}
        if isinstance(node, str):
            node = {component.tag: node} if component.tag else {node: {}}
            self.source = self.source.with_value(path, node)
        if isinstance(node, Mapping) and component.tag:
            return {str(node.get(component.tag)): path}
        return {name: (*path, name) for name in node} if isinstance(node, Mapping) else {}

    def _node(self, path: TreePath) -> Any:
        node = self.source.tree
        for part in path:
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def _shown(self, *names: str) -> str:
        return ".".join([*self._seen[self._num_hidden :], *names])

    def _no_field(self, name: str, known: Iterable[str]) -> ConfigError:
        here = [self._shown(other) for other in known]
        if self._shown() == "":  # It may be a section, or a field of one.
            fields = self._sections.model_fields.items()
            below = {n: nested.model_fields for n, f in fields if (nested := nested_of(f))}
            there = [f"{section}.{field}" for section, names in below.items() for field in names]
            if whole := next((each for each in there if each.endswith(f".{name}")), None):
                return ConfigError(f"no field `{name}`; did you mean `{whole}`?")
            here += [*below, *there]
        return ConfigError(f"no field `{self._shown(name)}`{did_you_mean(self._shown(name), here)}")
