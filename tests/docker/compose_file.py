"""Reads compose files: variables filled in, later files laid over earlier ones."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
CUDA = DOCKER / "compose.cuda.yaml"


def read_compose(*files: Path, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns what the files say together, with `settings` for `${NAME:-default}`."""
    merged: dict[str, Any] = {}
    for file in files:
        merged = _merge(merged, _fill(yaml.safe_load(file.read_text()), settings or {}))
    return merged


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        keys = [*below, *(key for key in above if key not in below)]
        both = {key: _merge(below.get(key), above[key]) for key in above}
        return {key: both.get(key, below.get(key)) for key in keys}
    return above


def _fill(value: Any, settings: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(inner, settings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, settings) for inner in value]
    if isinstance(value, str):
        pattern = r"\$\{(\w+):-([^}]*)\}"
        return re.sub(pattern, lambda match: settings.get(match[1]) or match[2], value)
    return value
