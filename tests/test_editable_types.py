"""A type checker sees the package's types after `pip install -e .`."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta; print(build_meta.build_editable('dist'))"
MINE = """
import tune_speed

study = tune_speed.search("digits_quickstart")
reveal_type(study)
study.nonsense
"""


def checkout(folder: Path) -> Path:
    """Returns a copy of what a checkout has to be installed: building leaves files in it."""
    for name in ("tune_speed", "search_spaces"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def installed(folder: Path, source: Path) -> Path:
    """Returns Python of a new environment in which `source` is installed as `pip install -e` does.

    pip itself would ask for a network.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    build = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True, check=True
    )
    places = sysconfig.get_paths("venv", vars={"base": str(folder), "platbase": str(folder)})
    with zipfile.ZipFile(source / "dist" / build.stdout.split()[-1]) as wheel:
        wheel.extractall(places["purelib"])
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_users_file_is_checked_with_the_types_of_an_editable_install(tmp_path: Path) -> None:
    python = installed(tmp_path / "venv", checkout(tmp_path / "checkout"))
    (tmp_path / "mine.py").write_text(MINE)
    said = checked(tmp_path, "mypy", "--python-executable", str(python), "--cache-dir", "cache")
    assert 'Revealed type is "tune_speed.api.study.Study"' in said, said
    assert '"Study" has no attribute "nonsense"' in said
    assert "import-untyped" not in said and "import-not-found" not in said
    # Pyright's own package would fetch the checker, and Node.js, as it runs.
    said = checked(tmp_path, "basedpyright", "--pythonpath", str(python))
    assert 'Type of "study" is "Study"' in said, said
    assert 'Cannot access attribute "nonsense" for class "Study"' in said
    assert "reportMissing" not in said


def checked(folder: Path, checker: str, *options: str) -> str:
    # Of the environment alone: a path to this checkout would show the types anyway.
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", checker, *options, "mine.py"],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout
