"""Starts Ray on this machine for one search: quickly, and with no process that it does not need."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import ray
from ray._private import utils
from ray._private.node import Node

from tune_speed.search.settings import ResourceConfig

NOT_NEEDED = ("start_api_server", "start_log_monitor", "start_monitor")
"""Dashboard, forwarding of workers' output, and autoscaler: three of Python's processes, which a
local search never asks, and for the first of which Ray waits. They took 2.2 s of a core's time."""
MODULES = ["tune_speed.search.trial_process", "tune_speed.objective"]
"""What trial processes import, torch among it."""
MOST_FOR_EACH = 2
"""Ray begins with as many processes as there are cores: on machines with more than so many for each
trial, most would import torch for nothing."""


def start(resources: ResourceConfig, *, at_once: int) -> None:
    """Starts a local Ray and connects to it.

    Where trials train on cores, and have most of them, processes are ready for them soon: they
    import what a trial needs while the driver does the rest of its own start.

    Args:
        resources: what a trial gets.
        at_once: trials at the same time; 0: unknown.
    """
    is_preloaded = not resources.gpu and int(utils.get_num_cpus()) <= MOST_FOR_EACH * at_once
    threads = _threads(max(1, int(resources.cpu))) if is_preloaded else nullcontext()
    with _bare_nodes(), threads:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            configure_logging=False,
            _system_config={"preload_python_modules": MODULES} if is_preloaded else None,
        )


@contextmanager
def _bare_nodes() -> Iterator[None]:
    """Leaves out of a node that starts meanwhile what is not needed, as far as this Ray has it."""
    before = {name: getattr(Node, name) for name in NOT_NEEDED if hasattr(Node, name)}
    for name in before:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Gives processes that are started meanwhile so many threads of OpenMP, unless the user did.

    Ray does the same for each trial, but too late for what is imported before it.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
