"""Processes that must not outlive the one that started them."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends.

    Most notice by themselves that their parent is gone; one that is frozen, or whose interpreter a
    library holds, cannot. Does nothing where there is no Linux.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It went before the kernel knew.
        os.kill(os.getpid(), signal.SIGKILL)
