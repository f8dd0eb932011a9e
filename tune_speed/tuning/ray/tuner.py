"""Ray Tune runs the trials; every decision is the controller's.

Ray's own experiment state is not used to resume: it keeps neither the trial scheduler's state nor
what a searcher was told last. The ledger has both. Tune's clock (`time_total_s`) counts imports and
waiting, so it is not looked at either.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.errors import ServiceError, one_line, readable
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.settings import SearchConfig
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.ray.nodes import Nodes
from tune_speed.tuning.ray.placement_groups import PlacementGroups
from tune_speed.tuning.ray.reports import Receiver
from tune_speed.tuning.ray.silence import MARGIN_S, OwnTime, Silence, Standstill
from tune_speed.tuning.ray.trial_process import TrialProcess

HEARTBEAT_S = 2.0
"""A process without news gives a sign of life this often [s]: Ctrl-C waits for it."""
HEARTBEATS_PER_S = 16
"""All processes together give no more: the driver has other things to do."""
REPORT_EVERY_S = 0.05
"""Shortest time between two reports of a trial that goes on [s]."""
REPORTS_PER_S = 200
"""All processes together give no more: at 2 ms each the driver is not what they wait for. What they
evaluate in between goes with the next report."""
TICK_S = 0.1
"""Shortest time between two looks at the view [s]: with many trials Tune's loop goes fast."""
NODE_DIED = ("its node has died", "is unavailable: ")
"""What Ray says of a process that is not to blame for its end."""


class _Adapter:
    """What searcher, trial scheduler and callback share: Ray's trial ids beside ours."""

    def __init__(self, controller: SearchController, nodes: Nodes) -> None:
        self.controller = controller
        self._nodes = nodes
        self._holdings: PlacementGroups | None = None
        self.trial_ids: dict[str, str] = {}
        """Our id of each Ray trial that is running."""
        self._receivers: dict[str, Receiver] = {}
        search, loop = controller.study.search, controller.study.loop
        self._loop = "" if loop is None else loop.packed
        self._heartbeat_s = max(HEARTBEAT_S, search.at_once / HEARTBEATS_PER_S)
        self._report_every_s = max(REPORT_EVERY_S, search.at_once / REPORTS_PER_S)
        self._time = OwnTime()
        limit_s = search.hang_after_s + self._heartbeat_s + MARGIN_S
        self._silence = Silence(limit_s=limit_s, kill=ray.kill, time=self._time)
        self._standstill = Standstill(limit_s=search.hang_after_s, time=self._time)
        self._killed: dict[str, str] = {}
        self.failure: ServiceError | None = None
        """Why the search cannot go on."""

    def propose(self, ray_id: str) -> dict[str, Any] | None:
        spec = self.controller.propose()
        if spec is None:
            return None
        search = self.controller.study.search
        self.trial_ids[ray_id] = spec.trial_id
        self._receivers[ray_id] = Receiver()
        return {
            "spec": spec.model_dump_json(),
            "plugins": shipped(),
            "loop": self._loop,
            "devices": spec.devices,
            "holdings": self._holdings_for(spec.devices),
            "resources": search.resources.model_dump_json(),
            **self._nodes.placement(),
            "folder": str(self.controller.ledger.folder),
            "stop_after_s": self.controller.time_left_s(),
            "hang_after_s": search.hang_after_s,
            "heartbeat_s": self._heartbeat_s,
            "report_every_s": self._report_every_s,
        }

    def _holdings_for(self, devices: int) -> str:
        """Returns the name of the list of what several devices hold, empty for one device.

        The list is an actor, hence a process: only trials that need it start it.
        """
        if devices == 1:
            return ""
        self._holdings = self._holdings or PlacementGroups()
        return self._holdings.name

    def reported(self, ray_id: str, report: Mapping[str, Any]) -> bool:
        """Takes the report of a trial that goes on; returns whether to stop it."""
        self._silence.heard(ray_id)
        if "record" not in report or ray_id not in self.trial_ids:
            return False
        record = self._receivers[ray_id].record(report)
        if report.get("end") == "hung":  # Its process ends, once it is asked for more.
            self._forget(ray_id)
            self.controller.finished(record)
            return False
        is_stopped = self.controller.evaluated(record) is not None
        if is_stopped:
            self._forget(ray_id)
        return is_stopped

    def ended(self, ray_id: str, report: Mapping[str, Any]) -> None:
        """Takes the last report of a trial."""
        if ray_id not in self.trial_ids:
            return  # Stopped by us; its record is written.
        receiver, trial_id = self._receivers[ray_id], self._forget(ray_id)
        if report["end"] == "interrupted":
            self.controller.interrupted(trial_id, reason="the search's time budget ended")
            return
        self.controller.finished(receiver.record(report))

    def died(self, ray_trial: RayTrial) -> None:
        ray_id = ray_trial.trial_id
        silent = self._killed.pop(ray_id, None)
        if ray_id not in self.trial_ids:
            return
        trial_id = self._forget(ray_id)
        if self._holdings is not None:
            self._holdings.release(trial_id)
        details = readable(_error_text(ray_trial))
        reason = silent or f"its process died: {one_line(details.strip().splitlines()[-1])}"
        is_blameless = silent is None and any(text in details for text in NODE_DIED)
        if is_blameless:
            reason = "its node died, or cannot be reached"
        self.controller.died(trial_id, reason=reason, details=details, is_blameless=is_blameless)

    def look_after(self, started: Callable[[], Mapping[str, Any]]) -> None:
        """Kills processes that are silent; gives up where no trial finds a place."""
        if not self._time.is_time_to_look():
            return
        handles, limit_s = started(), self.controller.study.search.hang_after_s
        for ray_id in self._silence.look(handles):
            self._killed[ray_id] = f"its process gave no sign of life for {limit_s:g} s"
        if self._standstill.look(is_waiting=bool(self.trial_ids), is_running=bool(handles)):
            self.failure = self.failure or _no_place(self.controller.study.search, self._nodes)

    def _forget(self, ray_id: str) -> str:
        """Returns our id of a trial that ended."""
        del self._receivers[ray_id]
        return self.trial_ids.pop(ray_id)

    def experiment_ended(self) -> None:
        for trial_id in self.controller.running:
            self.controller.interrupted(trial_id, reason="the search was stopped")


def _no_place(search: SearchConfig, nodes: Nodes) -> ServiceError:
    """Returns the error of a search that no node has room for."""
    there, asked = ray.cluster_resources(), search.resources.bundle()
    where = f" on {nodes.device_type}" if nodes.device_type else ""
    return ServiceError(
        f"a node must have room for a trial, which asks for {_amounts(asked)}{where}, but for"
        f" {search.hang_after_s:g} s none had; all nodes together have"
        f" {_amounts({name: there.get(name, 0.0) for name in asked})}. Bring back the nodes that"
        " are gone, or free them, and go on with --resume: no finished trial is lost."
    )


def _amounts(resources: Mapping[str, float]) -> str:
    """Returns Ray's resources for people, such as `2 CPU, 0.5 GPU, 4 GiB of memory`."""
    units = {"memory": (2**30, "GiB of memory")}
    scaled = {name: units.get(name, (1, name)) for name in resources}
    return ", ".join(f"{resources[n] / unit:g} {text}" for n, (unit, text) in scaled.items())


def _error_text(ray_trial: RayTrial) -> str:
    """Returns what Ray noted of a trial's death, on this machine, headline last."""
    file = ray_trial.error_file
    if file is None or not Path(file).exists():
        return "it could not start, and Ray gives no error; see Ray's logs"
    text = Path(file).read_text()
    actor_died = "The actor died unexpectedly before finishing this task."
    return f"{text}\n{actor_died}" if actor_died in text else text


class _Unpickled:
    """Ray saves searcher and callbacks from time to time; ours are rebuilt from the ledger."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _ConductorSearcher(_Unpickled, Searcher):  # type: ignore[misc]
    """Hands out the controller's proposals."""

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        self._adapter = adapter

    def suggest(self, trial_id: str) -> Any:
        config = self._adapter.propose(trial_id)
        if config is not None:
            return config
        # A trial whose process dies is proposed again, so the search is over when nothing runs.
        is_over = not self._adapter.controller.running
        return Searcher.FINISHED if is_over else None

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        return True

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing to do: the callback has seen the result before."""

    def save(self, checkpoint_path: str) -> None:
        """Saves nothing: the ledger is what a search resumes from."""

    def restore(self, checkpoint_path: str) -> None:
        """Restores nothing, see `save`."""


class _ConductorScheduler(FIFOScheduler):  # type: ignore[misc]
    """Stops a trial when the controller says so.

    Tune is told to go on with it: the trial's process then reports its end, once it is through
    with it. Told to stop, Tune would give it the next trial while this one still trains.
    """

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        self._adapter = adapter
        self._controller: Any = None

    def on_trial_add(self, tune_controller: Any, trial: RayTrial) -> None:
        """Takes note of Tune's controller, which knows the processes of trials."""
        self._controller = tune_controller._tune_controller  # Under a wrapper.

    def on_trial_result(self, tune_controller: Any, trial: RayTrial, result: dict[str, Any]) -> str:
        """Returns that the trial goes on, if only to end itself."""
        if self._adapter.reported(trial.trial_id, result):
            trial.temporary_state.ray_actor.stop_trial.remote()
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Leaves the order to Tune, which would otherwise look at all trials there were."""

    def started(self) -> dict[str, Any]:
        """Returns the handles of all processes that have, or begin to have, a trial."""
        if self._controller is None:
            return {}
        live = self._controller._actor_manager._live_actors_to_ray_actors_resources
        return {
            trial.trial_id: live[actor][0]
            for trial, actor in self._controller._trial_to_actor.items()
            if actor in live
        }

    def end_search(self) -> None:
        """Has Tune stop at once."""
        self._controller.request_stop_experiment()


class _ConductorCallback(_Unpickled, tune.Callback):  # type: ignore[misc]
    """Passes results, deaths and the end on to the controller."""

    def __init__(
        self, adapter: _Adapter, scheduler: _ConductorScheduler, on_tick: Callable[[], None]
    ) -> None:
        self._adapter, self._scheduler = adapter, scheduler
        self._on_tick, self._ticked_s = on_tick, 0.0

    def on_step_end(self, iteration: int, trials: list[RayTrial], **info: Any) -> None:
        """Looks after silent processes; Tune calls ten times a second and more, come what may."""
        self._adapter.look_after(self._scheduler.started)
        if self._adapter.failure is not None:
            self._scheduler.end_search()
        if time.monotonic() - self._ticked_s > TICK_S:
            self._ticked_s = time.monotonic()
            self._on_tick()

    def on_trial_result(
        self,
        iteration: int,
        trials: list[RayTrial],
        trial: RayTrial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        if result.get("done"):
            self._adapter.ended(trial.trial_id, result)
        # Ray keeps each trial's last result in its own state: curves have no business there.
        result.pop("record", None)

    def on_trial_complete(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any
    ) -> None:
        trial.config.clear()  # Tune keeps all trials; of an ended one nothing is needed.

    def on_trial_error(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any
    ) -> None:
        self._adapter.died(trial)
        trial.config.clear()

    def on_experiment_end(self, trials: list[RayTrial], **info: Any) -> None:
        self._adapter.experiment_ended()


def _keep_tune_here(folder: Path) -> None:
    """Lets Tune's driver run in this process although the cluster is far (ray://).

    Ray would run it on the head node, away from the ledger. All that keeps it from running here is
    that it asks for the session folder of a local node, where it stages files that we do not use.
    """
    from ray.train._internal import storage

    storage._get_ray_train_session_dir = lambda: str(folder / "session")


def _take_idle_processes() -> None:
    """Lets trials run in the processes that a local node has started in advance.

    Tune gives trials environment variables of their own, for which Ray starts others, and those in
    advance end unused: two seconds of a search on two cores. The variables are the driver's, and
    processes of a local node have them from there.
    """
    class_cache.DEFAULT_ENV_VARS.clear()
    class_cache.ENV_VARS_TO_PROPAGATE.clear()


def run_search(
    controller: SearchController,
    nodes: Nodes,
    *,
    on_tick: Callable[[], None],
    process: type[TrialProcess] = TrialProcess,
) -> None:
    """Runs trials until the controller proposes no more; Ctrl-C stops it and keeps what finished.

    Raises: ServiceError if for `search.hang_after` no node has room for a trial.
    """
    adapter = _Adapter(controller, nodes)
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1e9")  # Nobody reads it.
    # Ray's state of the experiment: nothing in it that the ledger does not have.
    with tempfile.TemporaryDirectory(prefix="tune_speed-", ignore_cleanup_errors=True) as folder:
        if nodes.is_local:
            _take_idle_processes()
        if ray.util.client.ray.is_connected():
            _keep_tune_here(Path(folder))
        _run_tune(adapter, process, folder, on_tick)
    controller.clear_checkpoints()
    if adapter.failure is not None:
        raise adapter.failure


def _run_tune(
    adapter: _Adapter, process: type[TrialProcess], folder: str, on_tick: Callable[[], None]
) -> None:
    scheduler = _ConductorScheduler(adapter)
    # Tune keeps both: the first Ctrl-C after a search by the API would be swallowed.
    with handlers_kept(signal.SIGINT, signal.SIGUSR1):
        tune.run(
            process,
            name="ray",
            storage_path=folder,
            num_samples=10**9,  # The searcher says when it is over.
            search_alg=tune.search.ConcurrencyLimiter(
                _ConductorSearcher(adapter), max_concurrent=adapter.controller.study.search.at_once
            ),
            scheduler=scheduler,
            callbacks=[_ConductorCallback(adapter, scheduler, on_tick)],
            reuse_actors=True,
            verbose=0,
            raise_on_failed_trial=False,
            trial_dirname_creator=lambda trial: trial.trial_id,
            _remote=False,
        )
