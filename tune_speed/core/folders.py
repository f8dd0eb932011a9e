"""Where studies store their files, and where the shipped ones lie."""

import os
from importlib import resources
from pathlib import Path

STUDY_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""What a study's name must match: it is that of a folder, and a part of addresses."""


def shipped_folder() -> Path:
    package = Path(str(resources.files("tune_speed")))
    # A wheel has the folder in the package, a checkout next to it.
    folders = (package / "search_spaces", package.parent / "search_spaces")
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def studies_folder() -> Path:
    """Returns where studies store their ledgers: $TUNE_SPEED_STUDIES or ./tune_speed_studies."""
    # Absolute, as trial processes have working folders of their own.
    return Path(os.environ.get("TUNE_SPEED_STUDIES", "tune_speed_studies")).absolute()


def default_cache_dir() -> Path:
    """Returns $TUNE_SPEED_CACHE, or tune_speed in $XDG_CACHE_HOME or in ~/.cache."""
    if chosen := os.environ.get("TUNE_SPEED_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tune_speed"
