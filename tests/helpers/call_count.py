"""How much a function does, told by its calls: the same on a busy machine, and under coverage."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import tune_speed

PACKAGE = str(Path(tune_speed.__file__).parent)


def count_calls(function: Callable[[], object]) -> int:
    """Returns how many functions are called while `function` runs: the package's, and C's by it."""
    # Not all: now and then slipcover looks for code in all objects, in the midst of any line.
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
