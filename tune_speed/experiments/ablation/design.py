"""What an ablation changes, and which of the changes are run together.

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
BASE = "base"
# Characters of a label: names of arms are made of them.
MAX_LABEL = 100
OPTION = "--axes"
EXAMPLE = f"Example: `{OPTION} accumulation_steps=2,batch_size=32|64`."
NAMED = "Give it a name: `{axis: {name: {field: value}}}`."
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


class _Mistake(NamedTuple):
    must: str
    given: str | None = None
    hint: str | None = None

    def at(self, path: str) -> Problem:
        return Problem(path=path, **self._asdict())


def parse_axes(text: str) -> dict[str, Any]:
    """Returns the axes of `a=2,b=x|y,c={one: {d: 3}}` as `ablate.axes` of a file would hold them.

    Commas part axes and `|` levels, except in brackets and in quotes; each value is YAML.

    Raises: ConfigError, with every mistake.
    """
    axes: dict[str, Any] = {}
    problems: list[Problem] = []
    for part in _split(text, ","):
        name, equals, given = (each.strip() for each in part.partition("="))
        if not equals or not name:
            must = "must be written as path=value, with commas between axes"
            problems.append(_Mistake(must, f"`{part.strip() or 'nothing'}`", EXAMPLE).at(OPTION))
        elif name in axes:
            hint = "Part levels with `|`."
            problems.append(_Mistake("must give each axis once", f"`{name}`", hint).at(OPTION))
        else:
            values = [_value(name, level.strip(), problems) for level in _split(given, "|")]
            axes[name] = values if len(values) > 1 else values[0]
    if problems:
        raise ConfigError(problems=tuple(problems))
    return axes


def _value(name: str, text: str, problems: list[Problem]) -> Any:
    must, hint = f"`{name}` must have a value after each `=` and `|`", f"Write `{name}=null`."
    try:
        if text:
            return parse_yaml(text).tree
    except ConfigError as error:
        musts = "; ".join(problem.must for problem in error.problems)
        must, hint = f"the value of `{name}` {musts}", ""
    problems.append(_Mistake(must, f"`{text}`" if text else None, hint or None).at(OPTION))
    return None


def _split(text: str, separator: str) -> list[str]:
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth:
        must = "must close each bracket that it opens, and no other"
        raise ConfigError.of(OPTION, must, given=f"`{text}`")
    return parts


def read_axes(axes: Mapping[str, Any]) -> tuple[Axis, ...]:
    """`field: [value, value]` has several levels; a value that is a list is given in a list.

    `name: {level: {field: value, ...}, ...}` names its levels, each of which may set several
    fields.

    Raises: ConfigError, with every mistake: an axis or a level without content or given twice, or a
        field that is neither the recipe's nor `run.cpu_threads` or `run.device`.
    """
    if not axes:
        must = "must name at least one axis"
        raise ConfigError.of("ablate.axes", must, hint=EXAMPLE)
    found = [Axis(_field(name), tuple(_levels(name, value))) for name, value in axes.items()]
    labels = Counter(level.label for axis in found for level in axis.levels)
    problems = [
        wrong.at(f"ablate.axes.{name}")
        for name, axis in zip(axes, found, strict=True)
        for wrong in (
            *_axis_mistakes(axis, [each.name for each in found]),
            *(wrong for level in axis.levels for wrong in _level_mistakes(level, labels)),
        )
    ]
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


def _axis_mistakes(axis: Axis, names: Sequence[str]) -> Iterator[_Mistake]:
    settings = [level.settings for level in axis.levels]
    if not axis.name:
        yield _Mistake("must have a name")
    if not axis.levels:
        hint = "What the recipe has is the base's value."
        yield _Mistake("must have at least one value, or one named level", hint=hint)
    if names.count(axis.name) > 1:
        yield _Mistake("must be given once")
    if any(each in settings[:index] for index, each in enumerate(settings)):
        yield _Mistake("each level must be given once, with settings of its own")
    if axis.name.partition(".")[0] in SECTIONS:
        yield from _path_mistakes(axis.name)


def _level_mistakes(level: Level, labels: Counter[str]) -> Iterator[_Mistake]:
    label, paths = level.label, [path for path, _ in level.settings]
    if not label:
        yield _Mistake("each level must have a name")
    if labels[label] > 1:
        yield _Mistake("each level must be given once", f"`{label}`")
    if not label.isprintable() or len(label) > MAX_LABEL:
        must = f"a level must read as at most {MAX_LABEL} printable characters"
        yield _Mistake(must, f"`{label[:MAX_LABEL]}`", NAMED)
    # Names of arms and interactions are split at these again: such a label would fall apart.
    if label == BASE or AND in label or TIMES in label:
        must = f"a level must not be called `{BASE}`, nor hold `{AND}` or `{TIMES}`"
        yield _Mistake(must, f"`{label}`")
    if not paths:
        hint = "Example: `half: {precision: half}`; other values of one field go in a list."
        yield _Mistake(f"level `{label}` must be a mapping of fields to values", hint=hint)
    for path in overwritten(paths):
        yield _Mistake(f"level `{label}` must not set `{path}` and then what is around it")
    for path in paths:
        yield from _path_mistakes(path)


def _path_mistakes(path: str) -> Iterator[_Mistake]:
    from tune_speed.training.recipe import Recipe

    first = path.partition(".")[0]
    must = f"must be a field of the recipe, or one of {', '.join(RUN_FIELDS)}"
    if not all(path.split(".")):
        yield _Mistake("must name a field", f"`{path}`")
    elif first in SECTIONS and path not in RUN_FIELDS:
        hint = "No ablation may touch the rest: times compare within one workload only."
        yield _Mistake(must, f"`{path}`", hint)
    elif first not in Recipe.model_fields and path not in RUN_FIELDS:
        yield _Mistake(must, f"`{path}`{did_you_mean(first, Recipe.model_fields)}")


def overwritten(paths: Sequence[str]) -> list[str]:
    """Returns the paths that a later one sets again, as itself or with what is around it."""
    return [
        path
        for index, path in enumerate(paths)
        if any(f"{path}.".startswith(f"{later}.") for later in paths[index + 1 :])
    ]


# --- Arms

Design = Literal["one-at-a-time", "leave-one-out", "factorial", "stacking", "cumulative"]
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
    if mistakes := [*_design_mistakes(axes, design)]:
        raise ConfigError(problems=tuple(each.at("ablate.design") for each in mistakes))
    found = []
    for levels in dict.fromkeys(_combinations(axes, design)):
        labels = [axis.levels[j - 1].label for axis, j in zip(axes, levels, strict=True) if j]
        found.append(Arm(AND.join(labels) or BASE, levels))
    return tuple(found)


def _design_mistakes(axes: Sequence[Axis], design: Design) -> Iterator[_Mistake]:
    num_arms = math.prod(len(axis.levels) + 1 for axis in axes)
    if design == "factorial" and num_arms > MOST_ARMS:
        hint = "Try `one-at-a-time` or `stacking`, or leave axes or levels out."
        yield _Mistake(f"a factorial must have at most {MOST_ARMS} arms", f"{num_arms}", hint)
    if design in ONE_LEVEL_DESIGNS and len(axes) < 2:
        yield _Mistake(f"`{design}` must have at least two axes", "one", "Try `one-at-a-time`.")
    elif design in ONE_LEVEL_DESIGNS:
        must, hint = f"`{design}` must have one level on each axis", "Try `factorial`."
        several = ((len(axis.levels), axis.name) for axis in axes if len(axis.levels) > 1)
        yield from (_Mistake(must, f"{number} on `{name}`", hint) for number, name in several)
    # An arm with levels that clash would not be what its name says. With `cumulative` a step may
    # replace an earlier one: constant rate, drops, one-cycle.
    if design in ("one-at-a-time", "cumulative"):
        return
    paths = [{path for level in axis.levels for path, _ in level.settings} for axis in axes]
    pairs = itertools.combinations(paths, 2)
    clashes = {p for ours, theirs in pairs for p in ours for q in theirs if overwritten([p, q])}
    must = f"levels that `{design}` runs together must not set the same field"
    hint = "Make them levels of one axis, put the wider field first, or try `one-at-a-time`."
    yield from (_Mistake(must, f"`{path}` on two axes", hint) for path in sorted(clashes))


def _combinations(axes: Sequence[Axis], design: Design) -> list[tuple[int, ...]]:
    num = len(axes)
    none, full = (0,) * num, (1,) * num
    alone = [
        (*none[:i], level, *none[i + 1 :])
        for i, axis in enumerate(axes)
        for level in range(1, len(axis.levels) + 1)
    ]
    if design == "factorial":
        product = itertools.product(*(range(len(axis.levels) + 1) for axis in axes))
        # Fewer changes first, then those of the first axes.
        return sorted(
            product, key=lambda levels: (-levels.count(0), [n == 0 for n in levels], levels)
        )
    return {
        "one-at-a-time": [none, *alone],
        "stacking": [none, *alone, full],
        "cumulative": [(1,) * count + (0,) * (num - count) for count in range(num + 1)],
        "leave-one-out": [none, *((*full[:i], 0, *full[i + 1 :]) for i in range(num)), full],
    }[design]


def settings_of(arm: Arm, axes: Sequence[Axis]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        setting
        for axis, level in zip(axes, arm.levels, strict=True)
        if level
        for setting in axis.levels[level - 1].settings
    )
