"""A trial on several devices of one node: its ranks are processes of the trial's own process.

Ray Tune has reserved all of its devices at once, in one bundle.
"""

import math
import time
from collections.abc import Callable
from functools import partial

from tune_speed.core.errors import DeviceFailed, TuneSpeedError, readable
from tune_speed.training.distributed.local import run_here
from tune_speed.training.distributed.supervisor import Ended, RankChannel, RanksDied
from tune_speed.training.objective import Trial
from tune_speed.training.trial import TrialSpec
from tune_speed.tuning.ray.liveness import Watchdog, leave

LEAVE_S = 30.0
"""How long the trial's process has to end the ranks of a trial that hangs [s]."""


class TrialHung(TuneSpeedError):
    """A rank takes no step; the message holds the stacks of its threads."""


def run_on_node(spec: TrialSpec, *, interrupt: Callable[[], bool], hang_after_s: float) -> Trial:
    """Runs one trial on the devices of this process, which `interrupt` polls twice a second.

    Rank 0, which waits for the others, may show no sign of life for `hang_after_s` [s].

    Raises: Interrupted; DeviceFailed and RanksDied, because the trial may be run again.
    """
    watch = partial(watch_rank, limit_s=hang_after_s) if hang_after_s < math.inf else None
    return run_here(spec, interrupt=interrupt, refuse=(DeviceFailed, RanksDied), watch=watch)


def watch_rank(line: RankChannel, *, limit_s: float) -> None:
    """Watches this process, in which a rank works: where it hangs, its supervisor gets to know."""

    def on_hang(stacks: str, quiet_s: float) -> None:
        error = TrialHung(f"no step for {quiet_s:.0f} s\n{readable(stacks)}")
        line.tell(Ended(rank=0, error=error))
        time.sleep(LEAVE_S)
        leave()

    Watchdog(on_hang=on_hang).watch(limit_s=limit_s)
