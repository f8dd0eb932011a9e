"""Joins a Ray cluster, or starts a local one, and says what it has."""

import logging
import os
import socket
import urllib.parse
from pathlib import Path

import ray

import tune_speed
from tune_speed.errors import ConfigError, ServiceError
from tune_speed.search.settings import ResourceConfig

CONNECT_TIMEOUT_S = 8.0


def connect(address: str | None, *, resources: ResourceConfig, devices: int = 1) -> None:
    """Connects to the Ray cluster at `address`, or starts a local one.

    Args:
        address: of the cluster; None: a local one.
        resources: what one device of a trial gets.
        devices: the most that a trial trains on.

    Raises: ServiceError if nothing answers there, or if it lacks the resources of one trial.
    """
    _quiet_ray()
    if address is not None:
        _refuse_dead_address(address)
    runtime_env = {"py_modules": [str(Path(tune_speed.__file__).parent)]} if address else None
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env=runtime_env,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ServiceError(
            f"a Ray cluster must answer at {address or 'this machine'}, but got: {error}."
            " Start one with `ray start --head`, or leave --address out for a local one."
        ) from error
    _refuse_missing_resources(resources, devices)


def _quiet_ray() -> None:
    """Keeps Ray's own console output and result files out of the way of ours."""
    defaults = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "TUNE_MAX_PENDING_TRIALS_PG": "16",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Otherwise 15: whatever else runs on the machine would go first, and trials are timed.
        "RAY_worker_niceness": "0",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    for name in ("ray", "ray.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _refuse_dead_address(address: str) -> None:
    """Raises a ServiceError within seconds where `ray.init` itself would wait for minutes."""
    if address in ("auto", "local"):
        return
    parts = urllib.parse.urlsplit(address if "://" in address else f"gcs://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(
            f"--address must be auto, HOST:PORT or ray://HOST:PORT, but got {address}."
        )
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ServiceError(
            f"a Ray cluster must answer at {address}, but got: {error}."
            " Check the address, or leave --address out for a local cluster."
        ) from error


def _refuse_missing_resources(resources: ResourceConfig, devices: int) -> None:
    total = ray.cluster_resources()
    for name, each in (("CPU", resources.cpu), ("GPU", resources.gpu)):
        wanted = each * devices
        there = total.get(name, 0.0)
        if wanted > there:
            raise ServiceError(
                f"search.resources.{name.lower()}: the cluster must have the {name} of one trial,"
                f" but got {wanted:g} asked for and {there:g} there."
                f" Try --set search.resources.{name.lower()}={there / devices:g}."
            )


def disconnect() -> None:
    """Leaves the cluster; a local one ends."""
    ray.shutdown()


def node_cpus() -> float:
    """Returns the CPUs of the cluster's largest node."""
    nodes = (node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    return max(nodes, default=1.0)
