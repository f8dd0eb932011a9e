"""How much a function does, told by its calls: the same on a busy machine, and under coverage."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import tune_speed

PACKAGE = str(Path(tune_speed.__file__).parent)


def count_calls(function: Callable[[], object]) -> int:
    """Returns how many functions are called while `function` runs: the package's, and C's by it."""
    # Not slipcover's: its probes, and now and then a search of all objects for code.
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        is_probe = event == "c_call" and "slipcover" in str(getattr(argument, "__module__", ""))
        is_ours = frame.f_code.co_filename.startswith(PACKAGE) and not is_probe
        count += event in ("call", "c_call") and is_ours

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
