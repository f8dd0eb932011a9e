"""One searched value: its range or choices, when it plays a part, and what lies at its ends."""

import functools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any, Literal, TypeGuard

from tune_speed.study.mistake import Mistake, near_miss, shown
from tune_speed.study.yaml import TreePath, core_scalar

Scalar = str | int | float | bool | None


class Unfit(ValueError):
    """A value that a parameter does not take; `must` says what it has to be."""

    def __init__(self, must: str, value: Any) -> None:
        super().__init__(f"{must}, but got {shown(value)}")
        self.must = must


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A searched value by its dotted path, such as `optimizer.sgd.lr`."""

    name: str
    kind: Literal["int", "float", "categorical"]
    low: float | None = None
    """Least value, itself included; None for a categorical."""
    high: float | None = None
    log: bool = False
    step: float | None = None
    """Distance of neighbouring values from `low` on; None: 1 for `int`, none for `float`."""
    choices: tuple[Scalar, ...] = ()
    """Values of a categorical; no two are equal."""
    # A dict has no hash: with it in the hash, no frozen parameter would have one.
    condition: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """Values that other parameters must have for this one to be active."""

    def is_active(self, params: Mapping[str, Any]) -> bool:
        return all(name in params and same(params[name], v) for name, v in self.condition.items())

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {_form(self.choices[i]): i for i in reversed(range(len(self.choices)))}

    def position(self, value: Any) -> int:
        """Returns the position of a choice, as JSON has it. Raises: ValueError if it is none."""
        if (position := self._positions.get(_form(value))) is not None:
            return position
        for position, choice in enumerate(self.choices):  # 64 is 64.0, but true is not 1.
            if isinstance(choice, bool) == isinstance(value, bool) and choice == value:
                return position
        raise Unfit(f"must be {self.text()}", value)

    def values(self) -> "range | tuple[Scalar, ...] | None":
        """Returns all values in order; None for a float without `step`, which has too many."""
        if self.kind == "categorical":
            return self.choices
        assert self.low is not None and self.high is not None
        if self.kind == "int":
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        if self.step is None:
            return None
        # In decimals, as 0.1 · 3 is not 0.3 in floats.
        low, high, step = (Decimal(str(v)) for v in (self.low, self.high, self.step))
        return tuple(float(low + step * k) for k in range(int((high - low) / step) + 1))

    @property
    def as_text(self) -> "Parameter":
        """The same with its choices as texts: equal for choices that a storage returned."""
        return replace(self, choices=tuple(map(_form, self.choices)))

    def ends(self) -> tuple[Scalar, ...]:
        """Returns the outermost values: both ends of a range, or every choice."""
        if self.kind == "categorical":
            return self.choices
        return (self.low, self.high) if self.low != self.high else (self.low,)

    def read(self, value: Any) -> Any:
        """Returns a value, as JSON has it, in this parameter's type. Raises: Unfit."""
        if self.kind == "categorical":
            return self.choices[self.position(value)]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unfit("must be a number", value)
        if not self._holds(value):
            raise Unfit(f"must be {self.text()}", value)
        return int(value) if self.kind == "int" else float(value)

    def _holds(self, value: float) -> bool:
        assert self.low is not None and self.high is not None
        if not self.low <= value <= self.high:
            return False
        step = 1 if self.kind == "int" and self.step is None else self.step
        if step is None:
            return True
        # Optuna itself tolerates rounding by 1e-8 of a step.
        steps = (value - self.low) / step
        return abs(steps - round(steps)) < 1e-8

    def text(self) -> str:
        """Returns the values in words, such as `from 0.1 to 1 (log)` or `one of 64, 128`."""
        if self.kind == "categorical":
            return "one of " + ", ".join(map(shown, self.choices))
        step = f" in steps of {self.step}" if self.step is not None else ""
        return f"from {self.low} to {self.high}{step}{' (log)' if self.log else ''}"


def _form(choice: Any) -> str:
    try:
        return json.dumps(choice, sort_keys=True, default=repr)
    except (TypeError, ValueError):  # A mapping whose keys are not text, or that holds itself.
        return repr(choice)


def same(one: Any, other: Any) -> bool:
    return one is other or _form(one) == _form(other)


RANGE_KEYS = ("low", "high", "log", "step")
LEAF_KEYS = (*RANGE_KEYS, "choices")
# Of W&B, Ray, Optuna and others.
FOREIGN_KEYS = frozenset({"min", "max", "lower", "upper", "start", "end", "values", "distribution"})
# Values of one list. Each is checked alone and together with the rest of the recipe.
MAX_CHOICES = 1000
# Values of a range of whole steps; a grid holds them all.
MAX_STEPS = 1_000_000
# Digits between the least and the greatest float.
_EXACT = Context(prec=700)


def is_leaf(node: Any) -> bool:
    """Returns whether `node` is searched: a mapping with `low`, `high` or `choices`."""
    return isinstance(node, Mapping) and not {"low", "high", "choices"}.isdisjoint(node)


def branches(node: Any) -> dict[str, Any] | None:
    """Returns the sub-trees of `choices` by name where each choice has one, else None."""
    choices = node.get("choices") if is_leaf(node) else None
    if not isinstance(choices, Mapping):
        return None
    return {name: {} if sub is None else sub for name, sub in choices.items()}


def listed_choices(leaf: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yields position and value of each single value under `choices`, repeated ones left out."""
    choices = leaf.get("choices")
    # Cut first, as looking for repeated values takes time with the square of their number.
    listed = choices[:MAX_CHOICES] if isinstance(choices, list | tuple) else ()
    for position, choice in enumerate(listed):
        if is_scalar(choice) and choice not in listed[:position]:
            yield position, choice


def leaf_parameter(
    name: str, leaf: Mapping[str, Any], condition: Mapping[str, Scalar]
) -> Parameter:
    if "choices" in leaf:
        choices = tuple(leaf["choices"])
        return Parameter(name=name, kind="categorical", choices=choices, condition=condition)
    numbers = [leaf[key] for key in ("low", "high", "step") if leaf.get(key) is not None]
    is_int = all(isinstance(number, int) for number in numbers)
    convert = int if is_int else float
    return Parameter(
        name=name,
        kind="int" if is_int else "float",
        low=convert(leaf["low"]),
        high=convert(leaf["high"]),
        log=leaf.get("log") or False,
        step=convert(leaf["step"]) if leaf.get("step") is not None else None,
        condition=condition,
    )


def leaf_mistakes(leaf: Mapping[str, Any], path: TreePath) -> Iterator[Mistake]:
    own_keys = ("choices",) if "choices" in leaf else RANGE_KEYS
    for key in leaf:
        if key not in own_keys:
            must = f"a searched value may have only {', '.join(own_keys)}"
            yield Mistake((*path, key), must, f"`{key}`", near_miss(key, own_keys))
    if "choices" in leaf:
        yield from _choices_mistakes(leaf, path)
    else:
        found = list(_range_form_mistakes(leaf, path))
        yield from found or _range_value_mistakes(leaf, path)


def _choices_mistakes(leaf: Mapping[str, Any], path: TreePath) -> Iterator[Mistake]:
    choices = leaf["choices"]
    at = (*path, "choices")
    if not isinstance(choices, list | tuple | Mapping):
        yield Mistake(at, "choices must be a list, or a mapping from names", shown(choices))
        return
    if not choices:
        yield Mistake(at, "choices must not be empty", shown(choices))
    if len(choices) > MAX_CHOICES:
        must, hint = f"choices must be at most {MAX_CHOICES}", "Try a range: `low` and `high`."
        yield Mistake(at, must, str(len(choices)), hint)
        return
    for position, choice in enumerate([] if isinstance(choices, Mapping) else choices):
        if not is_scalar(choice):
            must = "a listed choice must be a single finite value"
            hint = "Choices with fields are a mapping: `choices: {sgd: {…}, adamw: {…}}`."
            yield Mistake((*at, position), must, shown(choice), hint)
        elif choice in choices[:position]:  # Equal to Python and Optuna: 1, 1.0 and true.
            yield Mistake((*at, position), "choices must differ", f"{shown(choice)} again")


def _range_form_mistakes(leaf: Mapping[str, Any], path: TreePath) -> Iterator[Mistake]:
    for key in ("low", "high"):
        if key not in leaf:
            yield Mistake(path, "a range must have both `low` and `high`", shown(leaf))
    for key in ("low", "high", "step"):
        if key in leaf and not is_number(leaf[key]) and not (key == "step" and leaf[key] is None):
            yield Mistake((*path, key), "must be a number", shown(leaf[key]), unquote(leaf[key]))
    if not isinstance(leaf.get("log", False), bool):
        yield Mistake((*path, "log"), "must be true or false", shown(leaf["log"]))


def _range_value_mistakes(leaf: Mapping[str, Any], path: TreePath) -> Iterator[Mistake]:
    low, high, log, step = (leaf.get(key) for key in RANGE_KEYS)
    assert low is not None and high is not None
    if low > high:
        yield Mistake((*path, "low"), "`low` must be at most `high`", f"low {low}, high {high}")
    if log and low <= 0:
        yield Mistake((*path, "low"), "`low` must be above 0 with `log: true`", shown(low))
    if step is None:
        return
    if log:
        must = "a range must have either `log: true` or `step`"
        yield Mistake((*path, "step"), must, "both", "Leave out `step`, or list the `choices`.")
    elif step <= 0:
        yield Mistake((*path, "step"), "`step` must be above 0", shown(step))
    elif low <= high:
        yield from _step_mistakes(low, high, step, path)


def _step_mistakes(low: float, high: float, step: float, path: TreePath) -> Iterator[Mistake]:
    # In decimals, as in floats 0.3 is no multiple of 0.1.
    first, last, width = (Decimal(str(number)) for number in (low, high, step))
    steps = _EXACT.divide_int(_EXACT.subtract(last, first), width)
    reached = _EXACT.add(first, _EXACT.multiply(steps, width))
    if steps > MAX_STEPS:
        must, given = f"a range must have at most {MAX_STEPS} steps", f"low {low}, high {high}"
        yield Mistake((*path, "step"), must, f"{given}, step {step}", "Leave out `step`.")
    elif reached != last:
        must = "`high` must be `low` plus whole steps"
        given = f"low {low}, high {high}, step {step}"
        yield Mistake((*path, "high"), must, given, f"Try high: {reached} or {reached + width}.")


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether `value` is a finite number; true and false are none."""
    # In Python bool is a subclass of int, and an int may be larger than any float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def unquote(value: Any) -> str | None:
    """Returns the advice to remove the quotes where `value` is a number in quotes."""
    try:
        is_quoted = isinstance(value, str) and is_number(core_scalar(value))
    except ValueError:
        return None
    return "Remove the quotes." if is_quoted else None


def own_form(value: Any) -> str | None:
    """Returns how ranges and choices are written here where `value` has another tool's form."""
    is_foreign = isinstance(value, Mapping) and not FOREIGN_KEYS.isdisjoint(value)
    form = "A range is `{low: …, high: …}`, with `log: true` if need be; a list, `{choices: […]}`."
    return form if is_foreign else None


NEAR = 0.02
"""Of a range's width (over the logarithm where it is searched so): so near is at its end."""
FEWEST = 3
"""Configurations there from which on it is said; they must be half of the best, too."""


def at_ends(parameters: Sequence[Parameter], best: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for parameter in parameters:
        if parameter.kind == "categorical" or parameter.low == parameter.high:
            continue
        places = [_place(parameter, p[parameter.name]) for p in best if parameter.name in p]
        for end, word, value in ((0, "below", parameter.low), (1, "above", parameter.high)):
            count = sum(abs(place - end) <= NEAR for place in places)
            if count >= FEWEST and 2 * count >= len(places):
                of = f"{count} of the best {len(places)} at {value:g}"
                yield f"{parameter.name}, {of}: better ones may lie {word} that"


def _place(parameter: Parameter, value: float) -> float:
    assert parameter.low is not None and parameter.high is not None
    scale = math.log if parameter.log else float
    low, high = scale(parameter.low), scale(parameter.high)
    return (scale(value) - low) / (high - low)
