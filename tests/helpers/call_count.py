"""How much a function does, told by its calls: the same on a busy machine, and under coverage."""

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(function: Callable[[], object]) -> int:
    """Returns how many functions, Python's and C's, are called while `function` runs."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
