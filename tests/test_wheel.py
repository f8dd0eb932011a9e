"""The wheel, installed away from the checkout, does what the README's first command does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import build_wheel, environment

pytestmark = pytest.mark.slow
EASY = "workload.target.value=0.15 recipe.epochs.high=5 search.concurrent=1 search.trials=4"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel alone; what it needs comes from this Python's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    command = [*pip, str(folder / "site"), str(build_wheel(folder))]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "site"


def run(site: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in an empty folder, where the wheel comes before a checkout."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_quickstart_runs_from_a_wheel_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    tune_speed = str(site / "bin" / "tune-speed")
    where = run(site, tmp_path, "-c", "import tune_speed; print(tune_speed.__file__)")
    assert where.stdout.strip() == str(site / "tune_speed" / "__init__.py")
    overrides = [word for each in EASY.split() for word in ("--set", each)]
    done = run(site, tmp_path, tune_speed, "search", "digits_quickstart", *overrides)
    assert done.returncode == 0, done.stderr
    # A search ends sooner where nothing that is left can be faster.
    assert re.search(r"^[1-4] trials?: ", done.stdout, re.MULTILINE), done.stdout
    # Templates are data of the package, as the shipped files are.
    page = ("report", "digits_quickstart", "--html", "report.html")
    for command in (("best", "--export", "train.py"), page):
        made = run(site, tmp_path, tune_speed, *command)
        assert made.returncode == 0, made.stderr
    trained = run(site, tmp_path, "train.py", "--seed", "1")
    assert trained.returncode == 0, trained.stderr
    assert "training time" in trained.stdout
