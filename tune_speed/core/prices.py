"""What devices cost, by their user's prices: none is shipped, and the unit is theirs."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter

from tune_speed.core.errors import ConfigError

Prices = dict[
    Annotated[str, Field(min_length=1)], Annotated[float, Field(gt=0, allow_inf_nan=False)]
]
"""Of one hour of one whole device, by its type as results name it."""


def prices_file() -> Path:
    """Returns $TUNE_SPEED_PRICES, or tune_speed/prices.yaml in $XDG_CONFIG_HOME or in ~/.config."""
    if chosen := os.environ.get("TUNE_SPEED_PRICES"):
        return Path(chosen)
    # Not `Path.home`, which raises for a user without a home, as in containers.
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "tune_speed" / "prices.yaml"


def own_prices() -> Mapping[str, float]:
    """Returns the prices of the user's file; none without a file. Raises: ConfigError."""
    file = prices_file()
    try:
        changed_at = file.stat().st_mtime_ns
    except OSError:
        return {}
    return _read(file, changed_at)


@cache
def _read(file: Path, changed_at: int) -> Mapping[str, float]:
    try:
        found = yaml.safe_load(file.read_text())
        return TypeAdapter(Prices).validate_python(found or {}, strict=True)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"{file} must have a price above 0 for each type of device, such as `NVIDIA H200: 3.5`,"
            f" but {' '.join(str(error).split())}"
        ) from error
