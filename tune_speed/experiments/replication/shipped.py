"""The replications that come with the package, and what each of them runs in a profile."""

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Never

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import is_file
from tune_speed.study.mistake import near_miss
from tune_speed.study.replication import ReplicationConfig
from tune_speed.study.yaml import core_scalar, read_yaml

FULL = "full"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


def shipped_replications() -> dict[str, Path]:
    package = Path(str(resources.files("tune_speed")))
    # A wheel puts the folder into the package; in a checkout it is next to it.
    folders = [each / "search_spaces" / "replications" for each in (package, package.parent)]
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """Raises: ConfigError if no file, name or experiment's number is `name`, or several have it."""
    if is_file(name):
        return Path(name)
    shipped = shipped_replications()
    if name in shipped:
        return shipped[name]
    if not name.isdecimal():
        _refuse(name, near_miss(name, shipped))
    rows, item = replication_listing(), int(name)
    names = [row["name"] for row in rows if item in row["items"]]
    if not names:
        known = sorted({number for row in rows for number in row["items"]})
        _refuse(str(item), f"Experiments there are: {', '.join(map(str, known)) or 'none'}.")
    if len(names) > 1:
        _refuse(str(item), f"Several are of experiment {item}: {', '.join(names)}.")
    return shipped[names[0]]


def _refuse(name: str, hint: str | None) -> Never:
    must = "must be the name of a replication, the number of its experiment, or a file"
    every = f"There are {', '.join(shipped_replications()) or 'none'}."
    raise ConfigError.of("", must, given=name, hint=hint or every)


def replication_listing() -> list[dict[str, Any]]:
    """Raises: ConfigError for a file that is not YAML, or is no replication."""
    rows = [_row(name, path) for name, path in shipped_replications().items()]
    return sorted(rows, key=lambda row: (not row["items"], row["items"], row["name"]))


def _row(name: str, path: Path) -> dict[str, Any]:
    tree = read_yaml(path).tree
    section = tree.get("replication") if isinstance(tree, Mapping) else None
    try:
        replication = ReplicationConfig.model_validate(section)
    except ValueError as error:
        must = f"must have a section `replication` without mistakes: {error}"
        raise ConfigError.of("", must, file=str(path)) from error
    return {
        "name": name,
        "items": sorted(replication.items),
        "title": replication.title,
        "question": replication.question,
        "source": source_of(replication),
        "parts": list(replication.parts),
        "profiles": ["full", *(tree.get("scale") or {})],
    }


def source_of(replication: ReplicationConfig) -> str:
    of_claims = (
        claim.published.source if claim.published else claim.source.partition(",")[0]
        for claim in replication.claims
    )
    return replication.source or ", ".join(dict.fromkeys(of_claims))


class Part(NamedTuple):
    """One ablation of a replication."""

    name: str
    """Such as `cifar10`; empty where the file is the only one."""
    overrides: tuple[str, ...]
    """What it changes about the file, as `--set` takes it, in this order."""


def plan(tree: Mapping[str, Any], profile: str) -> tuple[Part, ...]:
    """The profile's own values come first and the part's after them, so that the part's win.

    The profile's parts replace the file's. Raises: ConfigError if the file has no such profile.
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
    must = f"must have the profile; there are {', '.join(known)}"
    raise ConfigError.of("scale", must, given=profile, hint=near_miss(profile, known))


def as_overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    given = []
    for path, value in values.items():
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # A text that YAML reads as itself needs no quotes: `optimizer.name=adam`.
        if isinstance(value, str) and _PLAIN.fullmatch(value) and core_scalar(value) == value:
            text = value
        given.append(f"{path}={text}")
    return tuple(given)
