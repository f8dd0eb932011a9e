"""Private names of Ray that this package uses, as they are in Ray 2.60.

Each function says what breaks without it. Look at all of them when Ray is upgraded: none is covered
by Ray's deprecation policy.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services, utils, worker
from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default
from ray._private.node import Node

BYSTANDERS = ("start_monitor", "start_api_server", "start_log_monitor")
"""Starters of the autoscaler's monitor, the dashboard and the log monitor."""

BYSTANDERS_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""Without a dashboard its agent has none of them, and says so with -1."""


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def on_loopback() -> AbstractContextManager[None]:
    """Makes a local cluster's servers listen on 127.0.0.1, as they do on macOS and Windows."""
    # On Linux they listen on every address of the machine. Ray also replaces a loopback address
    # by the outer one, so a local cluster cannot be joined either without this.
    return _replaced(ray_constants, ENABLE_RAY_CLUSTER=False)


def without_sigterm() -> AbstractContextManager[None]:
    """Makes Ray leave alone what SIGTERM does in a process that may be the caller's."""
    return _replaced(utils, set_sigterm_handler=lambda _: None)


@contextmanager
def without_bystanders() -> Iterator[None]:
    """Makes a local cluster start without dashboard, autoscaler and log monitor."""
    # `include_dashboard=False` still starts the API server, and `ray.init` waits for it. Without
    # the three the first training step comes after 0.83 of the time (see tests/benchmarks). Nodes'
    # agents load the dashboard's libraries, 0.2 s of a start, unless these seem to be missing.
    starters = dict.fromkeys(BYSTANDERS, lambda *_, **__: None)
    with _replaced(Node, **starters), _replaced(utils, get_dashboard_dependency_error=ImportError):
        yield


def patient(limit_s: float) -> AbstractContextManager[None]:
    """Makes Ray wait `limit_s` for a node, not its fixed 30 s, unless that has ended."""
    # At a load of 14 on two cores, searches ended with "the current node timed out".
    get_node, deadline = services.get_node, time.monotonic() + limit_s

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError as error:
                if time.monotonic() >= deadline:
                    raise
                own = ((each.name(), each.status()) for each in psutil.Process().children())
                if ("raylet", psutil.STATUS_ZOMBIE) in own:
                    raise ConnectionError("Ray's node ended while it started") from error
            time.sleep(0.1)

    return _replaced(services, get_node=wait_for_node)


def with_known_ports() -> AbstractContextManager[None]:
    """Tells a local cluster's node the ports of its agents, instead of letting it wait for them."""
    # It waits 15 s for each, fixed, and then ends: on two slow cores at a load of 6 an agent needs
    # 17 s to import its libraries (Ray's issue 65983).
    start = Node.start_head_processes

    def start_head_processes(self: Node) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._ray_params.update(runtime_env_agent_port=free.getsockname()[1])
        for name in BYSTANDERS_PORTS:
            (Path(self._session_dir) / f"{name}_{self._node_id}").write_text("-1")
        start(self)

    return _replaced(Node, start_head_processes=start_head_processes)


class _HasStarted(Exception):
    pass


def start_node(limit_s: float) -> Node:
    """Starts a local cluster's processes, whose node may take `limit_s`; connects no driver."""

    # What `ray.init` does before that is in no call of its own.
    def connect(*_: Any, **__: Any) -> None:
        raise _HasStarted

    with (
        on_loopback(),
        without_bystanders(),
        with_known_ports(),
        patient(limit_s),
        _replaced(worker, connect=connect),
        suppress(_HasStarted),
    ):
        ray.init(address="local", include_dashboard=False, configure_logging=False)
    return worker._global_node


def send_token() -> None:
    # Ray does so by itself where this process begins the cluster.
    enable_token_auth_by_default()


def mute_daemons() -> None:
    # It goes to this process's stdout, where results are; `log_to_driver=False` does not cover it.
    worker.print_to_stdstream = lambda *_, **__: None


def is_client() -> bool:
    return bool(ray.util.client.ray.is_connected())


def own_node() -> Any:
    return worker._global_node


def run_tune_here(folder: Path) -> None:
    # Tune would run it on the head node, away from the ledger. With `_remote=False` the only
    # obstacle is the session folder of a local node, where Tune stages files that we do not use.
    from ray.train._internal import storage

    storage._get_ray_train_session_dir = lambda: str(folder / "session")


def use_prestarted_workers() -> None:
    """Lets trials run in the processes that a local node has started in advance."""
    # Tune gives trials environment variables of their own. Ray starts new processes for these, and
    # the prestarted ones end unused: two seconds of a search on two cores. A local node has the
    # variables from the driver (see `cluster.quiet_ray`).
    from ray.tune.execution import class_cache

    class_cache.DEFAULT_ENV_VARS.clear()
    class_cache.ENV_VARS_TO_PROPAGATE.clear()


def trial_actors(tune_controller: Any) -> Mapping[str, Any]:
    """Returns the actor handle of each trial that runs or starts, by Ray's trial id."""
    # Tune gives public access to a trial's actor only after its first report.
    live = tune_controller._actor_manager._live_actors_to_ray_actors_resources
    return {
        trial.trial_id: live[actor][0]
        for trial, actor in tune_controller._trial_to_actor.items()
        if actor in live
    }


def forget_ended(tune_controller: Any) -> None:
    """Lets Tune drop trials that have ended, with which its memory would grow for ever."""
    # It keeps 20 kB of each for its tables and its state on disk, which nobody reads.
    tune = tune_controller
    for trial in [t for t in tune._trials if t.is_finished() and t not in tune._trial_to_actor]:
        tune._trials.remove(trial)
        tune._trial_metadata.pop(trial.trial_id, None)
        ended = tune._stopped_trials, tune._failed_trials
        for held in (*ended, tune._live_trials, tune._trials_to_cache):
            held.discard(trial)


def without_origin(ray_trial: Any) -> None:
    """Lets Tune take note of the death of a trial that has reported nothing."""
    # For a line that `verbose=0` hides it asks the trial's process for host and pid. One that has
    # no memory left answers with Ray's error for that, which Tune raises: the search would end.
    ray_trial._default_result_or_future = None
