"""The time of day, put wrong by as many seconds as a file says; monotonic clocks are right."""

import os
import time
from collections.abc import Callable
from pathlib import Path

_time, _time_ns = time.time, time.time_ns
_localtime, _gmtime = time.localtime, time.gmtime


def offset_s() -> float:
    return float(Path(os.environ["FAULTS_CLOCK"]).read_text())


def install() -> None:
    """Replaces the functions of `time` that tell the time of day."""
    time.time = lambda: _time() + offset_s()
    time.time_ns = lambda: _time_ns() + int(1e9 * offset_s())
    time.localtime = _shifted(_localtime)
    time.gmtime = _shifted(_gmtime)


def _shifted(
    function: Callable[..., time.struct_time],
) -> Callable[..., time.struct_time]:
    return lambda moment=None: function(time.time() if moment is None else moment)
