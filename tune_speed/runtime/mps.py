"""Whether CUDA's multi-process service (MPS) runs, without which a GPU gives processes turns.

Source: NVIDIA, "Multi-Process Service"; manual page of nvidia-cuda-mps-control.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil

CONTROL = "nvidia-cuda-mps-control"
ANSWER_S = 5.0
START = f"`{CONTROL} -d`, as the user whose trials run, starts it; `echo quit | {CONTROL}` ends it"


class Mps(NamedTuple):
    """What is known of MPS on this machine."""

    runs: bool
    can_start: bool

    @property
    def sharing(self) -> str:
        return "MPS" if self.runs else "time slicing"

    @property
    def advice(self) -> str:
        # We never start it ourselves: it would outlive the search.
        if self.runs:
            return ""
        return f"MPS does not run; {START}" if self.can_start else f"no MPS here: no {CONTROL}"


def find_mps() -> Mps:
    """Returns whether MPS runs: by a query to its daemon, or else by looking for it."""
    control = shutil.which(CONTROL)
    return Mps(_answers(control) if control else _is_seen(), can_start=control is not None)


def _answers(control: str) -> bool:
    try:
        done = subprocess.run(
            [control],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "cannot find" not in (done.stdout + done.stderr).lower()


def _is_seen() -> bool:
    # A program that finds no daemon at its pipe continues without MPS.
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
    if pipes and Path(pipes).is_dir():
        return True
    names = (process.info["name"] or "" for process in psutil.process_iter(["name"]))
    # The kernel cuts names to 15 characters.
    return any(name.startswith(CONTROL[:15]) for name in names)
