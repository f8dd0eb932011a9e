"""Machines that are network namespaces of this one, with addresses and CPU names of their own."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NETWORK = "10.213.77"


class Machine:
    """A namespace. A command behind `prefix` runs in it."""

    def __init__(self, address: str) -> None:
        self.name = f"ts-{uuid.uuid4().hex[:8]}"
        self.address = address
        self.prefix: tuple[str, ...] = ("ip", "netns", "exec", self.name)

    def pretend_cpu(self, model: str, *, folder: Path) -> None:
        """Lets processes that start from now on read this model name in /proc/cpuinfo."""
        file = folder / f"cpuinfo-{self.name}"
        file.write_text(f"processor\t: 0\nmodel name\t: {model}\n")
        mount = 'mount --bind "$0" /proc/cpuinfo && exec "$@"'
        self.prefix = ("ip", "netns", "exec", self.name, "sh", "-c", mount, str(file))


@cache
def why_not() -> str | None:
    """Returns why there can be no namespaces here; None: they work."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and the command ip for network namespaces"
    try:
        with machines(2):
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.decode().strip()}"


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """Makes one machine, or two with a cable between them; removes them in the end."""
    made = [Machine(f"{NETWORK}.{i + 1}") for i in range(count)]
    try:
        for machine in made:
            _ip("netns", "add", machine.name)
            _ip("-n", machine.name, "link", "set", "lo", "up")
        if count == 1:
            _give_address(made[0], "lo")
        else:
            _plug_together(*made)
        yield made
    finally:
        for machine in made:
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True, check=False)


def _plug_together(one: Machine, other: Machine) -> None:
    ends = ["cable", "netns", one.name], ["cable", "netns", other.name]
    _ip("link", "add", "name", *ends[0], "type", "veth", "peer", "name", *ends[1])
    for machine in (one, other):
        _ip("-n", machine.name, "link", "set", "cable", "up")
        _give_address(machine, "cable")


def _give_address(machine: Machine, device: str) -> None:
    _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", device)
    # Ray finds a machine's address by asking which one it would use to reach the internet.
    route = ["default", "dev", device, "src", machine.address]
    _ip("-n", machine.name, "route", "add", *route)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
