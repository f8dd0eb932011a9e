"""What a replication runs in a profile: its parts, and what each changes about the file."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.mistake import near_miss
from tune_speed.study.yaml import core_scalar

FULL = "full"
"""The profile that is the file itself."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


class Part(NamedTuple):
    """One ablation of a replication."""

    name: str
    """Such as `cifar10`; empty where the file is the only one."""
    overrides: tuple[str, ...]
    """What it changes about the file, as `--set` takes it, in this order."""


def plan(tree: Mapping[str, Any], profile: str) -> tuple[Part, ...]:
    """Returns the parts of a checked study file in a profile.

    The profile's own values come first and the part's after them, so that the part's win. The
    profile's parts replace the file's. Without any, the file is the only part.

    Raises: ConfigError if the file has no such profile.
    """
    scale = scale_of(tree, profile)
    parts = scale.get("parts")
    if parts is None:
        parts = (tree.get("replication") or {}).get("parts")
    first = as_overrides(scale.get("set") or {})
    return tuple(
        Part(name, (*first, *as_overrides(values or {})))
        for name, values in (parts or {"": {}}).items()
    )


def scale_of(tree: Mapping[str, Any], profile: str) -> Mapping[str, Any]:
    """Returns the fields of a profile; none for `full`. Raises: ConfigError if there is no such."""
    scales: Mapping[str, Any] = tree.get("scale") or {}
    if profile == FULL:
        return {}
    if profile in scales:
        return scales[profile] or {}
    known = [FULL, *scales]
    hint = near_miss(profile, known)
    problem = Problem(
        path="scale", must=f"must have the profile; there are {', '.join(known)}", given=profile,
        hint=hint,
    )  # fmt: skip
    raise ConfigError(problems=(problem,))


def as_overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns `path=value` for each path, the value as YAML on one line."""
    given = []
    for path, value in values.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # A text that YAML reads as itself needs no quotes: `optimizer.name=adam`.
        if isinstance(value, str) and _PLAIN.fullmatch(value) and core_scalar(value) == value:
            text = value
        given.append(f"{path}={text}")
    return tuple(given)
