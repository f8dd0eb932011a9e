"""Where this node keeps what can be made anew: decoded data, compiled code, an empty store."""

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """Returns $TUNE_SPEED_CACHE, or tune_speed in $XDG_CACHE_HOME or in ~/.cache."""
    if chosen := os.environ.get("TUNE_SPEED_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tune_speed"
