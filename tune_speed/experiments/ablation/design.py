"""What an ablation changes, which of the changes are run together, and in which order.

Axes have the base's setting and one or more others: in a study file, under `ablate.axes`; on the
command line, `accumulation_steps=2,precision=bf16`. A design makes arms of them.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.yaml import parse_yaml

# What an axis may set besides the recipe: how fast the machine is, not what it must do.
RUN_FIELDS = ("run.cpu_threads", "run.device")
# Parts of a study file other than the recipe.
SECTIONS = (
    "study", "workload", "search", "certify", "tracking", "run", "ablate", "replication", "scale",
)  # fmt: skip
AND, TIMES = " + ", " × "
"""Between the labels in the name of an arm, and in that of an interaction."""
# Characters of a label: names of arms are made of them.
MAX_LABEL = 100
EXAMPLE = "accumulation_steps=2,batch_size=32|64"

_OPTION = "--axes"
_OWN_FIELDS = f"must be a field of the recipe, or one of {', '.join(RUN_FIELDS)}"
# A quoted text where YAML lets one begin, or a character.
_TOKEN = re.compile(r"""(?<![^\s=,|\[{:])(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|.""", flags=re.DOTALL)


class Level(NamedTuple):
    """One setting of an axis that is not the base's."""

    label: str
    """`precision=bf16`, or the name that the level was given."""
    settings: tuple[tuple[str, Any], ...]
    """Fields to set, in this order: dotted path, without `recipe.`, and value."""


class Axis(NamedTuple):
    """One thing that is changed."""

    name: str
    """The field's dotted path, without `recipe.`, or a name of the user's own."""
    levels: tuple[Level, ...]
    """Its settings; the base's own is not among them."""


def parse_axes(text: str) -> dict[str, Any]:
    """Returns the axes of `a=2,b=x|y,c={one: {d: 3}}` as `ablate.axes` of a file would hold them.

    Commas part axes and `|` levels, except in brackets and in quotes; each value is YAML.

    Raises: ConfigError, with every mistake.
    """
    axes: dict[str, Any] = {}
    problems: list[Problem] = []
    for part in _split(text, ","):
        try:
            name, value = _parse_axis(part)
            if name in axes:
                raise _mistake(_OPTION, "must give each axis once", name, "Part levels with `|`.")
            axes[name] = value
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems=tuple(problems))
    return axes


def _parse_axis(part: str) -> tuple[str, Any]:
    name, equals, text = part.partition("=")
    if not equals or not name.strip():
        must = "must be written as path=value, with commas between axes"
        raise _mistake(_OPTION, must, part.strip() or "nothing", f"Example: `{_OPTION} {EXAMPLE}`.")
    values = [_parse_value(name.strip(), level) for level in _split(text, "|")]
    return name.strip(), values if len(values) > 1 else values[0]


def _parse_value(name: str, text: str) -> Any:
    if not text.strip():
        hint = f"Write `{name}=null` for none."
        raise _mistake(_OPTION, f"`{name}` must have a value after each `=` and `|`", None, hint)
    try:
        return parse_yaml(text.strip()).tree
    except ConfigError as error:
        musts = "; ".join(problem.must for problem in error.problems)
        raise _mistake(_OPTION, f"the value of `{name}` {musts}", text.strip()) from None


def _split(text: str, separator: str) -> list[str]:
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth:
        raise _mistake(_OPTION, "must close each bracket that it opens, and no other", text)
    return parts


def _mistake(
    path: str, must: str, given: str | None = None, hint: str | None = None
) -> ConfigError:
    shown = None if given is None else f"`{given}`"
    return ConfigError.of(path, must, given=shown, hint=hint)


def read_axes(axes: Mapping[str, Any]) -> tuple[Axis, ...]:
    """`field: [value, value]` has several levels; a value that is a list is given in a list.

    `name: {level: {field: value, ...}, ...}` names its levels, each of which may set several
    fields.

    Raises: ConfigError, with every mistake: an axis or a level without content or given twice, or a
        field that is neither the recipe's nor `run.cpu_threads` or `run.device`.
    """
    if not axes:
        must = "must name at least one axis"
        raise _mistake("ablate.axes", must, None, f"Example: `{_OPTION} {EXAMPLE}`.")
    found: list[Axis] = []
    problems: list[Problem] = []
    for name, value in axes.items():
        axis = Axis(_field(name), tuple(_levels(name, value)))
        if isinstance(value, list) and not _is_plain(value):
            must = "a value in a list must be a text, a number, true, false, null or a list of such"
            hint = "Give the level a name: `{axis: {name: {field: value}}}`."
            problems.append(Problem(path=f"ablate.axes.{name}", must=must, hint=hint))
        problems += _axis_problems(f"ablate.axes.{name}", axis)
        found.append(axis)
    problems += _repetitions(found)
    if problems:
        raise ConfigError(problems=tuple(dict.fromkeys(problems)))
    return tuple(found)


def _field(path: Any) -> str:
    return str(path).strip().removeprefix("recipe.")


def _levels(name: str, value: Any) -> Iterator[Level]:
    if isinstance(value, Mapping):
        for label, fields in value.items():
            given = fields.items() if isinstance(fields, Mapping) else ()
            yield Level(str(label).strip(), tuple((_field(path), each) for path, each in given))
        return
    for each in value if isinstance(value, list) else [value]:
        # As YAML would have it, texts without quotes.
        text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str)
        yield Level(f"{_field(name)}={text}", ((_field(name), each),))


def _axis_problems(at: str, axis: Axis) -> Iterator[Problem]:
    if not axis.name:
        yield Problem(path=at, must="must have a name")
    if not axis.levels:
        must = "must have at least one value, or one named level"
        yield Problem(path=at, must=must, hint="What the recipe has is the base's value.")
    if axis.name.partition(".")[0] in SECTIONS:
        yield from _path_problems(at, axis.name)
    for level in axis.levels:
        yield from _label_problems(at, level.label)
        yield from _settings_problems(at, level)


def _label_problems(at: str, label: str) -> Iterator[Problem]:
    if not label:
        yield Problem(path=at, must="each level must have a name")
    if not label.isprintable() or len(label) > MAX_LABEL:
        must = f"a level must read as at most {MAX_LABEL} printable characters"
        hint = "Give it a name: `{axis: {name: {field: value}}}`."
        yield Problem(path=at, must=must, given=f"`{label[:MAX_LABEL]}`", hint=hint)
    # Names of arms and interactions are split at these again: such a label would fall apart.
    if label == "base" or AND in label or TIMES in label:
        must = f"a level must not be called `base`, nor hold `{AND}` or `{TIMES}`"
        yield Problem(path=at, must=must, given=f"`{label}`")


def _settings_problems(at: str, level: Level) -> Iterator[Problem]:
    if not level.settings:
        must = f"level `{level.label}` must be a mapping of fields to values"
        hint = "Example: `half: {precision: half}`; other values of one field go in a list."
        yield Problem(path=at, must=must, hint=hint)
    for path, _ in level.settings:
        yield from _path_problems(at, path)
    for path in overwritten([path for path, _ in level.settings]):
        must = f"level `{level.label}` must not set `{path}` and then what is around it"
        yield Problem(path=at, must=must)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, str | int | float)


def _path_problems(at: str, path: str) -> Iterator[Problem]:
    from tune_speed.training.recipe import Recipe

    first = path.partition(".")[0]
    if not all(path.split(".")):
        yield Problem(path=at, must="must name a field", given=f"`{path}`")
    elif path in RUN_FIELDS:
        return
    elif first in SECTIONS:
        hint = "No ablation may touch the rest: times compare within one workload only."
        yield Problem(path=at, must=_OWN_FIELDS, given=f"`{path}`", hint=hint)
    elif first not in Recipe.model_fields:
        near = did_you_mean(first, Recipe.model_fields)
        yield Problem(path=at, must=_OWN_FIELDS, given=f"`{path}`{near}")


def overwritten(paths: Sequence[str]) -> list[str]:
    """Returns the paths that a later one sets again, as itself or with what is around it."""
    return [
        path
        for index, path in enumerate(paths)
        if any(f"{path}.".startswith(f"{later}.") for later in paths[index + 1 :])
    ]


def _repetitions(axes: Sequence[Axis]) -> Iterator[Problem]:
    names = Counter(axis.name for axis in axes)
    labels = Counter(level.label for axis in axes for level in axis.levels)
    for name in (name for name, count in names.items() if count > 1):
        yield Problem(path=f"ablate.axes.{name}", must="must be given once")
    for axis in axes:
        at = f"ablate.axes.{axis.name}"
        again = dict.fromkeys(level.label for level in axis.levels if labels[level.label] > 1)
        for label in again:
            yield Problem(path=at, must="each level must be given once", given=f"`{label}`")
        settings = [level.settings for level in axis.levels]
        if not again and any(each in settings[:index] for index, each in enumerate(settings)):
            yield Problem(path=at, must="each level must have settings of its own")


# --- Arms

Design = Literal["one-at-a-time", "leave-one-out", "factorial", "stacking", "cumulative"]
BASE = "base"
# Of a factorial: six axes of one level each. Every seed runs all of them.
MOST_ARMS = 64
ONE_LEVEL_DESIGNS = ("leave-one-out", "stacking", "cumulative")
"""Designs in which an axis is on or off."""


class Arm(NamedTuple):
    """One configuration that is run with every seed."""

    name: str
    """`base`, or the labels of its levels joined by ` + `."""
    levels: tuple[int, ...]
    """For each axis 0 for the base's setting, or j for its level j - 1."""


def arms_of(axes: Sequence[Axis], design: Design) -> tuple[Arm, ...]:
    """Returns the arms of a design: the base first, those with fewer changes before the others.

    - `one-at-a-time`: the base and each level alone.
    - `leave-one-out`: the base, all together, and all without one.
    - `factorial`: all combinations.
    - `stacking`: the base, each alone, and all together.
    - `cumulative`: the base, the first, the first and the second, and so on.

    Raises: ConfigError where a factorial has more than 64 arms, where `leave-one-out`, `stacking`
        or `cumulative` has fewer than two axes or an axis with several levels, or where levels
        that are run together set the same field (only in `cumulative` may a later axis do so).
    """
    assert axes
    problems = [*_shape_problems(axes, design), *_clash_problems(axes, design)]
    if problems:
        raise ConfigError(problems=tuple(problems))
    found = []
    for levels in dict.fromkeys(_combinations(axes, design)):
        labels = [axis.levels[j - 1].label for axis, j in zip(axes, levels, strict=True) if j]
        found.append(Arm(AND.join(labels) or BASE, levels))
    return tuple(found)


def _shape_problems(axes: Sequence[Axis], design: Design) -> list[Problem]:
    num_arms = math.prod(len(axis.levels) + 1 for axis in axes)
    if design == "factorial" and num_arms > MOST_ARMS:
        must, given = f"a factorial must have at most {MOST_ARMS} arms", f"{num_arms}"
        hint = "Try `one-at-a-time` or `stacking`, or leave axes or levels out."
        return [_problem(must, given, hint)]
    if design in ONE_LEVEL_DESIGNS and len(axes) < 2:
        return [_problem(f"`{design}` must have at least two axes", "one", "Try `one-at-a-time`.")]
    if design in ONE_LEVEL_DESIGNS:
        several = [axis for axis in axes if len(axis.levels) > 1]
        must, hint = f"`{design}` must have one level on each axis", "Try `factorial`."
        return [_problem(must, f"{len(a.levels)} on `{a.name}`", hint) for a in several]
    return []


def _clash_problems(axes: Sequence[Axis], design: Design) -> list[Problem]:
    # An arm with such levels would not be what its name says.
    # With `cumulative` a step may replace an earlier one: constant rate, drops, one-cycle.
    if design in ("one-at-a-time", "cumulative"):
        return []
    paths = [
        list(dict.fromkeys(path for level in axis.levels for path, _ in level.settings))
        for axis in axes
    ]
    clashes = {
        path
        for first, second in itertools.combinations(paths, 2)
        for path in first
        if any(overwritten([path, later]) for later in second)
    }
    must = f"levels that `{design}` runs together must not set the same field"
    hint = "Make them levels of one axis, put the wider field first, or try `one-at-a-time`."
    return [_problem(must, f"`{path}` on two axes", hint) for path in sorted(clashes)]


def _problem(must: str, given: str, hint: str) -> Problem:
    return Problem(path="ablate.design", must=must, given=given, hint=hint)


def _combinations(axes: Sequence[Axis], design: Design) -> list[tuple[int, ...]]:
    num = len(axes)
    alone = [
        tuple(level if i == j else 0 for j in range(num))
        for i, axis in enumerate(axes)
        for level in range(1, len(axis.levels) + 1)
    ]
    none, full = (0,) * num, (1,) * num
    if design == "one-at-a-time":
        return [none, *alone]
    if design == "stacking":
        return [none, *alone, full]
    if design == "cumulative":
        return [(1,) * count + (0,) * (num - count) for count in range(num + 1)]
    if design == "leave-one-out":
        without = [tuple(int(i != left_out) for i in range(num)) for left_out in range(num)]
        return [none, *without, full]
    assert design == "factorial", design
    product = itertools.product(*(range(len(axis.levels) + 1) for axis in axes))

    def by_changes(levels: tuple[int, ...]) -> tuple[Any, ...]:
        unchanged = [level == 0 for level in levels]
        return -sum(unchanged), unchanged, levels

    return sorted(product, key=by_changes)


def settings_of(arm: Arm, axes: Sequence[Axis]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        setting
        for axis, level in zip(axes, arm.levels, strict=True)
        if level
        for setting in axis.levels[level - 1].settings
    )


def turns(arms: Sequence[str], *, block: int) -> tuple[str, ...]:
    """Returns the order in which a block runs the arms, so that none is always early or late.

    Of k arms, block 2i runs 0, 1, k-1, 2, k-2, ... shifted by i (mod k), and block 2i + 1 the same
    backwards. After each pair of blocks all arms have had the same mean position; after 2k blocks
    each has had each position twice, and each has come right after each other one twice.

    Source: Williams 1949, Experimental designs balanced for the estimation of residual effects of
    treatments; there backwards only for an odd k, and not in pairs.
    """
    num = len(arms)
    assert num == len(set(arms)), arms
    zigzag = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(num)]
    order = tuple(arms[(step + block // 2) % num] for step in zigzag)
    # Backwards in each second block, for an even k too: each pair evens out the arms' positions.
    return order[::-1] if block % 2 else order
