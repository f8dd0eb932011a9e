"""The study files that come with the package, by name: `digits_quickstart`."""

import os
from importlib import resources
from pathlib import Path

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.mistake import near_miss


def shipped_files() -> dict[str, Path]:
    """Returns every shipped study file by its name."""
    package = Path(str(resources.files("tune_speed")))
    # A wheel puts the folder into the package; in a checkout it stands beside it.
    folders = (package / "search_spaces", package.parent / "search_spaces")
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def is_file(path: Path | str) -> bool:
    """Returns whether there is such a file; False too for what no file can be called."""
    try:
        return os.path.exists(path) and not os.path.isdir(path)
    except ValueError:  # A NUL.
        return False


def find_file(path_or_name: Path | str) -> Path:
    """Returns the path of a file, or of the shipped file of that name where there is no such file.

    Raises: ConfigError, naming the shipped files.
    """
    path = Path(path_or_name)
    if is_file(path):
        return path
    shipped = shipped_files()
    if str(path_or_name) in shipped:
        return shipped[str(path_or_name)]
    hint = near_miss(path.stem, shipped) or f"Shipped are {', '.join(shipped)}."
    must = "must be a file, or the name of a shipped one"
    problem = Problem(path="", must=must, given=str(path_or_name), hint=hint)
    raise ConfigError(problems=(problem,))
