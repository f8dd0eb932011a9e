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
    command = ["-m", "mypy", "--python-executable", str(python), "--cache-dir", "cache", "mine.py"]
    # Of the environment alone: a path to this checkout would show the types anyway.
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "tune_speed.api.study.Study"' in done.stdout, done.stdout
    assert '"Study" has no attribute "nonsense"' in done.stdout
    assert "import-untyped" not in done.stdout and "import-not-found" not in done.stdout
