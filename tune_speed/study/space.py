"""The search space: a tree of the recipe's shape, in which bare values are fixed.

A mapping with `low` and `high` (and `log` or `step`) is searched: over integers if all its numbers
are integers, else over floats. One with `choices` is searched over a list's values, or a mapping's
names, whose sub-trees are active only where their name is chosen. Points may be partial: what one
leaves out is the policy's choice, but for choices on which a named parameter depends.
"""

import copy
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tune_speed.core.config import canonical_hash, flatten
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.mistake import Mistake, near_miss, shown
from tune_speed.study.parameter import (
    MAX_STEPS,
    Parameter,
    Scalar,
    Unfit,
    branches,
    is_leaf,
    is_scalar,
    leaf_mistakes,
    leaf_parameter,
)
from tune_speed.study.yaml import TreePath

Params = dict[str, Any]
"""What a search chose, by dotted path: `{"optimizer": "sgd", "optimizer.sgd.lr": 0.1}`."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Everything that a recipe may be. Made by `SearchSpace.from_tree`."""

    tree: Mapping[str, Any]
    """The tree as it was written; not to be changed."""
    parameters: tuple[Parameter, ...]
    """What is searched, in the tree's order: a choice comes before what depends on it."""

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "SearchSpace":
        """Returns the space of a tree, of any fields. Raises: ConfigError with every mistake."""
        mistakes = list(tree_mistakes(tree))
        if mistakes:
            raise ConfigError(problems=tuple(mistake.problem() for mistake in mistakes))
        # A copy, so that what a caller does to its tree afterwards cannot change the space.
        own_tree = copy.deepcopy(dict(tree))
        return cls(tree=own_tree, parameters=tuple(_parameters(own_tree, "", {})))

    def build(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tree with `params` in place of its searched leaves. Raises: ConfigError."""
        built: dict[str, Any] = _built(self.tree, "", self.read(params))
        return built

    def read(self, params: Mapping[str, Any]) -> Params:
        """Returns `params`, from JSON, in the space's types and order. Raises: ConfigError."""
        read: Params = {}
        problems: list[Problem] = []
        for parameter in self.parameters:
            if not parameter.is_active(read):
                continue
            try:
                if parameter.name not in params:
                    raise ValueError(f"must be given: {parameter.text()}")
                read[parameter.name] = parameter.read(params[parameter.name])
            except ValueError as error:
                problems.append(Problem(path=parameter.name, must=str(error)))
        conditions = {parameter.name: parameter.condition for parameter in self.parameters}
        # After a mistake what depends on the missing value would seem to be one too many.
        for name in () if problems else [name for name in params if name not in read]:
            if name in conditions:
                given = ", ".join(f"{other}={read.get(other)}" for other in conditions[name])
                problems.append(Problem(path=name, must="must be left out", given=given))
            else:
                hint = near_miss(name, conditions)
                problems.append(Problem(path=name, must="is not searched here", hint=hint))
        if problems:
            raise ConfigError("Parameters do not fit the search space.", problems=tuple(problems))
        return read

    @functools.cached_property
    def hash(self) -> str:
        """Hash over all that is fixed or searched. The order of choices counts, as in Optuna."""
        # Sorted, as the order of fields in a file means nothing.
        by_name = sorted((asdict(p) for p in self.parameters), key=lambda p: str(p["name"]))
        return canonical_hash({"searched": by_name, "fixed": flatten(_built(self.tree, "", None))})

    @functools.cached_property
    def size(self) -> int | None:
        """Number of different points; None if a float without `step` makes them endless."""
        if any(parameter.values() is None for parameter in self.parameters):
            return None
        return self._num_points(Parameter.values, {})

    def _num_points(self, values: "Values", condition: Mapping[str, Scalar]) -> int:
        total = 1
        for parameter in self.parameters:
            # Not the product over all parameters: it would count a point once for each value of
            # those that are not active in it.
            if parameter.condition != condition:
                continue
            options = values(parameter)
            assert options is not None
            dependent = any(parameter.name in other.condition for other in self.parameters)
            total *= (
                sum(self._num_points(values, {**condition, parameter.name: v}) for v in options)
                if dependent
                else _count(options)
            )
        return total

    def grid(self) -> dict[str, list[Scalar]]:
        """Returns all values, as Optuna's `GridSampler` takes them. Raises: ConfigError."""
        wide = [p for p in self.parameters if _count(p.values() or ()) > MAX_STEPS]
        endless = [p for p in self.parameters if p.values() is None]
        must, hint = f"a grid needs a range of at most {MAX_STEPS} values", None
        if not wide and endless:
            must = "a grid needs a range of whole steps"
            hint = "Give the range a `step`, list its `choices`, or take another sampler."
        if wide or endless:
            raise ConfigError(
                problems=tuple(
                    Problem(path=p.name, must=must, given=p.text(), hint=hint)
                    for p in wide or endless
                )
            )
        return {parameter.name: list(parameter.values() or ()) for parameter in self.parameters}

    def points(self) -> Iterator[Params]:
        """Yields every point of the grid once, the last parameter fastest. Raises: ConfigError."""
        axes = self.grid()
        return self._points(lambda parameter: axes[parameter.name], {}, 0)

    def _points(self, values: "Values", params: Params, position: int) -> Iterator[Params]:
        if position == len(self.parameters):
            yield dict(params)
            return
        parameter = self.parameters[position]
        if not parameter.is_active(params):
            yield from self._points(values, params, position + 1)
            return
        for value in values(parameter) or ():
            yield from self._points(values, {**params, parameter.name: value}, position + 1)

    def corners(self, *, limit: int = 512) -> Iterator[Params]:
        """Yields points at the ends of ranges, with every choice: all of them if at most `limit`.

        Otherwise: each end and choice together with all first and with all last ones, then
        `limit` at random (always the same).
        """
        if self._num_points(Parameter.ends, {}) <= limit:
            yield from self._points(Parameter.ends, {}, 0)
            return
        for parameter, end in ((p, end) for p in self.parameters for end in p.ends()):
            forced = {**parameter.condition, parameter.name: end}
            yield self._corner(lambda ends: ends[0], forced)
            yield self._corner(lambda ends: ends[-1], forced)
        # A fixed seed, so that a file that was right once is never refused by chance.
        chooser = random.Random(0)
        for _ in range(limit):
            yield self._corner(chooser.choice, {})

    def _corner(
        self, choose: Callable[[Sequence[Scalar]], Scalar], forced: Mapping[str, Scalar]
    ) -> Params:
        params: Params = {}
        for parameter in self.parameters:
            if parameter.is_active(params):
                name = parameter.name
                params[name] = forced[name] if name in forced else choose(parameter.ends())
        return params


Values = Callable[[Parameter], Sequence[Scalar] | None]


def tree_mistakes(tree: Any) -> Iterator[Mistake]:
    if not isinstance(tree, Mapping) or is_leaf(tree):
        yield Mistake((), "a search space must be a mapping of fields", shown(tree))
        return
    yield from node_mistakes(tree, ())


def node_mistakes(node: Any, path: TreePath) -> Iterator[Mistake]:
    subtrees = branches(node)
    if is_leaf(node):
        yield from leaf_mistakes(node, path)
        path = (*path, "choices")
    elif isinstance(node, Mapping):
        subtrees = dict(node)
    elif not all(map(is_scalar, node if isinstance(node, list | tuple) else [node])):
        must = "a fixed value must be text, a finite number, true, false, null, or a list of these"
        yield Mistake(path, must, shown(node))
    for name, subtree in (subtrees or {}).items():
        # A dot in a name would make dotted paths ambiguous.
        if not isinstance(name, str) or not name or "." in name:
            yield Mistake((*path, name), "a name must be text without dots", shown(name))
        yield from node_mistakes(subtree, (*path, name))


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _parameters(node: Any, name: str, condition: Mapping[str, Scalar]) -> Iterator[Parameter]:
    if not isinstance(node, Mapping):
        return
    if not is_leaf(node):
        for key, child in node.items():
            yield from _parameters(child, _join(name, key), condition)
        return
    yield leaf_parameter(name, node, condition)
    for choice, subtree in (branches(node) or {}).items():
        yield from _parameters(subtree, _join(name, choice), {**condition, name: choice})


def _built(node: Any, name: str, params: Params | None) -> Any:
    """Returns `node` with `params` in place of its leaves; for None, what all branches fix."""
    if not isinstance(node, Mapping):
        # Copied, as a built recipe shares nothing with the space or with other recipes.
        return copy.deepcopy(node)
    if not is_leaf(node):
        return {key: _built(child, _join(name, key), params) for key, child in node.items()}
    subtrees = branches(node)
    if params is None:
        return {
            key: _built(child, _join(name, key), None) for key, child in (subtrees or {}).items()
        }
    value = params[name]
    if subtrees is None:
        return value
    return {value: _built(subtrees[value], _join(name, value), params)}


def _count(options: Sequence[Scalar]) -> int:
    # `len` takes no range of more than 63 bits.
    if not isinstance(options, range):
        return len(options)
    return max(0, -(-(options.stop - options.start) // options.step))


def point_mistakes(
    space: SearchSpace, points: Sequence[Mapping[str, Any]], path: TreePath
) -> Iterator[Mistake]:
    known = {parameter.name: parameter for parameter in space.parameters}
    for position, point in enumerate(points):
        if not point:
            yield Mistake((*path, position), "a point must give a value to a parameter", "{}")
        for name, value in point.items():
            yield from _value_mistakes(known, point, name, value, (*path, position, name))


def _value_mistakes(
    known: Mapping[str, Parameter], point: Mapping[str, Any], name: str, value: Any, path: TreePath
) -> Iterator[Mistake]:
    if name not in known:
        hint = near_miss(name, known) or f"Searched are {', '.join(known) or 'none'}."
        yield Mistake(path, "must be searched in the recipe to be given here", f"`{name}`", hint)
        return
    try:
        known[name].read(value)
    except Unfit as error:
        yield Mistake(path, error.must, shown(value))
    whole = _with_conditions(known, point)
    needs = known[name].condition
    clash = {other: whole[other] for other, needed in needs.items() if whole[other] != needed}
    if clash:
        given = ", ".join(f"{other}: {shown(chosen)}" for other, chosen in clash.items())
        must = "must be left out unless " + ", ".join(f"{o} is {shown(needs[o])}" for o in clash)
        yield Mistake(path, must, given)


def _with_conditions(known: Mapping[str, Parameter], point: Mapping[str, Any]) -> Params:
    implied: Params = {}
    for name in point:
        for other, needed in known[name].condition.items() if name in known else ():
            implied.setdefault(other, needed)
    return {**implied, **point}


def read_point(space: SearchSpace, point: Mapping[str, Any]) -> Params:
    known = {parameter.name: parameter for parameter in space.parameters}
    whole = _with_conditions(known, point)
    return {name: p.read(whole[name]) for name, p in known.items() if name in whole}


def typical(space: SearchSpace, points: Sequence[Mapping[str, Any]]) -> Params:
    """Returns what is measured: the first point to evaluate, its gaps filled from the middle."""
    given = read_point(space, points[0]) if points else {}
    params: Params = {}
    for parameter in space.parameters:
        if parameter.is_active({**given, **params}):
            params[parameter.name] = given.get(parameter.name, _middle(parameter))
    return params


def _middle(parameter: Parameter) -> Scalar:
    values = parameter.values()
    if values is not None and not parameter.log:
        return values[len(values) // 2]
    assert parameter.low is not None and parameter.high is not None
    if not parameter.log:
        return (parameter.low + parameter.high) / 2
    # The middle of the logarithms.
    middle = math.sqrt(parameter.low * parameter.high)
    return middle if values is None else min(values, key=lambda value: abs(float(value) - middle))
