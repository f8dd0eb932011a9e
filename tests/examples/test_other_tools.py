"""The examples for other people's tools, run as their readers run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = ("optuna_digits.py", "ray_digits.py")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_on_a_screen(name: str) -> None:
    assert len(Path(__file__).with_name(name).read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "found"),
    [("optuna_digits.py", (), "Recommendation("), ("ray_digits.py", ("8",), "Recommended(")],
)
def test_an_example_ends_with_a_recommendation(
    tmp_path: Path, name: str, words: tuple[str, ...], found: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *words],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},  # Ray writes there.
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert found in done.stdout
