"""A wheel of the package, built as a user builds it."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Returns a wheel in `folder`, of a copy of this checkout: building leaves files behind."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("tune_speed", "search_spaces"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, checkout)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), "."]
    subprocess.run(pip, cwd=checkout, check=True, capture_output=True, text=True)
    shutil.rmtree(checkout)
    (wheel,) = folder.glob("*.whl")
    return wheel
