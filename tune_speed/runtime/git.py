"""What git says of a checkout."""

import os
import subprocess
from pathlib import Path

TIMEOUT_S = 5.0
_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


def run_git(folder: Path, *arguments: str) -> str | None:
    """Returns what git prints about the checkout around `folder`, or None if it fails."""
    # With these set, by a git hook that called us, git would describe the hook's own checkout.
    environment = {name: value for name, value in os.environ.items() if name not in _PLACES}
    try:
        done = subprocess.run(
            # A monitor would be a program of the user's settings, started by a mere reader.
            ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
