"""Joins a Ray cluster or starts a local one, and checks its resources."""

import atexit
import logging
import os
import socket
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray

from tune_speed.core.errors import ConfigError, ServiceError, TuneSpeedError
from tune_speed.core.text import option, setting
from tune_speed.runtime.file_lock import remove_leftovers
from tune_speed.runtime.process import ends_as_ctrl_c
from tune_speed.study.settings import ResourceConfig
from tune_speed.tracking.store.opening import within
from tune_speed.tuning.ray import compat
from tune_speed.tuning.ray.compat import on_loopback, patient, without_sigterm
from tune_speed.tuning.ray.health import END_S, RAY_SETTINGS, START_LIMIT_S, Head
from tune_speed.tuning.ray.node_query import alive_nodes
from tune_speed.tuning.ray.token import server_of

CONNECT_TIMEOUT_S = 8.0
STARTS = 3
_log = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1:", "localhost:", "[::1]:")


@contextmanager
def connected(
    address: str | None, *, resources: ResourceConfig, devices: int = 1
) -> Iterator[None]:
    remove_leftovers()
    connect(address, resources=resources, devices=devices)
    try:
        yield
    finally:
        disconnect()


def connect(address: str | None, *, resources: ResourceConfig, devices: int = 1) -> None:
    """Connects to the Ray cluster at `address`, or (None) starts a local one.

    `resources` are of one device of a trial, `devices` the most that it trains on, all of one node.
    Raises: ServiceError if none answers, or no node has them; ConfigError if this machine has not.
    """
    quiet_ray()
    if address is not None:
        _refuse_dead_address(address)
    for left in reversed(range(STARTS if address is None else 1)):
        try:
            if address is None:
                _start()
            else:
                _join(address)
            break
        except Exception as error:  # Ray raises a bare one where a process of its own ends early.
            if not left or "ray.init twice" in str(error):
                raise ServiceError(_no_ray(address, error)) from error
            _log.warning("Ray is started again, as it did not start: %s", error)
    for name, each in (("CPU", resources.cpu), ("GPU", resources.gpu)):
        there = max((node.resources.get(name, 0.0) for node in alive_nodes()), default=0.0)
        if each * devices > there:
            disconnect()
            where = "this machine" if address is None else "a node of the cluster"
            kind: type[TuneSpeedError] = ConfigError if address is None else ServiceError
            raise kind(_too_small(name, each, devices=devices, there=there, where=where))


def _too_small(name: str, each: float, *, devices: int, there: float, where: str) -> str:
    if devices == 1:
        return (
            f"search.resources.{name.lower()}: {where} must have the {name} of one trial, but got"
            f" {each:g} asked for and {there:g} there. Try"
            f" {setting(f'search.resources.{name.lower()}', f'{there:g}')}."
        )
    return (
        f"recipe.devices: {where} must have the {name} of all devices of a trial, but got {devices}"
        f" × {each:g} asked for and {there:g} there. Try fewer devices with more"
        " accumulation_steps: the gradient is the same."
    )


def _start() -> None:
    began_s, head = time.monotonic(), Head.own or Head()
    with ends_as_ctrl_c():
        try:
            address = head.address()
            compat.send_token()
            with head.watched():
                _join(address)
            _wait_for_worker(until_s=began_s + START_LIMIT_S)
        except BaseException:
            disconnect(within_s=1.0)
            raise


def _join(address: str) -> None:
    is_ours = Head.own is not None
    is_here = (server_of(address) or "").startswith(LOOPBACK)
    # Nodes of a cluster run the driver's version of this package; its dependencies must be there.
    package = {"py_modules": [str(Path(__file__).parents[2])]}
    with on_loopback() if is_here else nullcontext(), patient(START_LIMIT_S), without_sigterm():
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env=None if is_ours else package,
            configure_logging=False,
        )


def _wait_for_worker(*, until_s: float) -> None:
    """Raises: ConnectionError if no process comes that could run a trial; Ray's error on why."""
    answer = ray.remote(num_cpus=1)(lambda: None).remote()
    while not ray.wait([answer], timeout=0.5)[0]:
        if time.monotonic() > until_s:
            raise ConnectionError(f"its workers need more than {START_LIMIT_S:g} s")
    ray.get(answer)


def disconnect(*, within_s: float = END_S) -> None:
    """Leaves the cluster; a local one ends. Nothing that hangs is waited for."""
    try:
        if ray.is_initialized():  # Without, it would import much.
            within(within_s, ray.shutdown)
    except TimeoutError:
        atexit.unregister(ray.shutdown)
    finally:
        if Head.own is not None:
            Head.own.end()


def node_cpus(node_ids: Sequence[str] = ()) -> float:
    """Returns the CPUs of the largest of these nodes; without any named, of the whole cluster's."""
    there = [each for each in alive_nodes() if not node_ids or each.node_id in node_ids]
    return max((each.resources.get("CPU", 0.0) for each in there), default=1.0)


def quiet_ray() -> None:
    os.environ.update(RAY_SETTINGS | os.environ)
    for name in ("ray", "ray.tune"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    compat.mute_daemons()


def _no_ray(address: str | None, error: Exception) -> str:
    said = str(error).strip().rstrip(".")
    if "ray.init twice" in said:
        return "Ray is running in this process already. Call ray.shutdown() first."
    if "AF_UNIX" in said:
        return f"Ray's sockets need short paths, but got: {said}. Set TMPDIR to a shorter folder."
    if address is None:
        return f"Ray does not start on this machine: {said}. Is it too busy, or out of memory?"
    if "No node info found" in said or "possible node ids" in said:
        return (
            f"{option('address')} {address} must be given on a machine that is a node of the"
            " cluster, but this one is none. Search there, with `ray job submit`, or through ray://HOST:10001."
        )
    return (
        f"no Ray cluster answers at {address}: {said}."
        f" Start one with `ray start --head`, or leave {option('address')} out for a local one."
    )


def _refuse_dead_address(address: str) -> None:
    """Raises a ServiceError within seconds, a ConfigError if it is no address."""
    # `ray.init` itself would wait for minutes.
    if address == "auto":
        address = server_of(address) or ""
        if not address:
            raise ServiceError(
                f"{option('address')} auto needs a Ray cluster of this machine's, but none was"
                " started here."
                f" Give its HOST:PORT, or leave {option('address')} out for a local one."
            )
    parts = urllib.parse.urlsplit(address if "://" in address else f"gcs://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(
            f"{option('address')} must be auto, HOST:PORT or ray://HOST:PORT, but got {address}."
        )
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ServiceError(
            f"no Ray cluster answers at {address}: {error}."
            f" Check the address, or leave {option('address')} out for a local cluster."
        ) from error
