import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench_replications.py"
SOME = ("quick_answers", "factorial")


@pytest.mark.slow
def test_quick_replications_run_and_set_figures_beside_those_published(tmp_path: Path) -> None:
    out = tmp_path / "out.md"
    smaller = ("--set", "recipe.epochs=0.2", "--set", "recipe.model={resnet: {depth: 8}}")
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--only", *SOME, *smaller, "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, "TUNE_SPEED_STUDIES": str(tmp_path / "studies")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert all(name in text for name in SOME)
    assert "Nokhwal et al. 2023" in text and "not applicable here" in text
