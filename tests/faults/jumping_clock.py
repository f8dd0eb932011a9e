"""A time of day that jumps, in all Python processes of a search.

Not by libfaketime: under Python 3.11, whose `time.sleep` waits for a moment of the monotonic clock,
its version 0.9.10 lets sleeps fail with EINVAL; and what lies in C++ waits for moments of the time
of day, which the kernel would see jump, but not with a library in between.
"""

from datetime import timedelta
from pathlib import Path


class JumpingClock:
    """Shifts `time.time` and what else `faulty/sitecustomize.py` puts in its own place."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.jump_to(timedelta())

    @property
    def variables(self) -> dict[str, str]:
        return {"FAULTS_CLOCK": str(self._file)}

    def jump_to(self, offset: timedelta) -> None:
        """Sets the clock to the right time and `offset`, from the next look on."""
        new = self._file.with_suffix(".new")
        new.write_text(str(offset.total_seconds()))
        new.replace(self._file)
