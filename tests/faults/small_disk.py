"""A small disk of its own: a tmpfs that the test mounts, as root can."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Returns whether this process may mount a file system, which root in a container may not."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=20, check=False)
    except OSError:
        return False
    return os.geteuid() == 0 and done.returncode == 0


@contextmanager
def mounted(folder: Path, *, size_mib: int) -> Iterator[Path]:
    """Yields `folder`, a file system of that size until the block ends."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(folder)]
    subprocess.run(command, check=True, timeout=20)
    try:
        yield folder
    finally:
        # Lazily: a process that has a file open there must not keep the test from ending.
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


def fill(folder: Path) -> None:
    """Leaves no byte free on the disk of `folder`."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"\xa5" * size) == size:
                    continue
            except OSError:
                continue


def make_room(folder: Path) -> None:
    (folder / "filler").unlink()
