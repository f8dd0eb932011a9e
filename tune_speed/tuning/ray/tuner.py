"""Runs the trials of a search with Ray Tune; every decision is the controller's."""

# Ray's own experiment state is not used to resume: it holds neither the trial scheduler's state nor
# what a searcher was told last. The ledger has both. Tune's clock (`time_total_s`) counts imports
# and waiting, so it is not used either.

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.errors import ServiceError, SetUpFailed, one_line, readable
from tune_speed.core.words import StopKind, StopReason
from tune_speed.runtime.process import handlers_kept
from tune_speed.runtime.temporary import TemporaryFolder
from tune_speed.study.validation import most_devices
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.steering import Steering
from tune_speed.tuning.ray import compat
from tune_speed.tuning.ray.liveness import MARGIN_S, HeartbeatMonitor, OwnTime, StallMonitor
from tune_speed.tuning.ray.nodes import Nodes
from tune_speed.tuning.ray.reports import Receiver
from tune_speed.tuning.ray.trial_process import TrialProcess

# A process without a report sends a heartbeat this often [s]: Ctrl-C waits for it.
HEARTBEAT_S = 2.0
# All processes together send no more: the driver has other things to do.
HEARTBEATS_PER_S = 16
# Shortest time between two reports of a running trial [s].
REPORT_EVERY_S = 0.05
# All processes together send no more: at 2 ms each the driver is not what they wait for. What they
# evaluate in between is in the next report.
REPORTS_PER_S = 200
# Shortest time between two looks at the view [s]: with many trials Tune's loop runs fast.
TICK_S = 0.1
# What Ray says of a process that is not to blame for its end.
NODE_DIED = ("its node has died", "is unavailable: ")


class Adapter:
    """State that searcher, trial scheduler and callback share: our trial ids by Ray's."""

    def __init__(self, controller: SearchController, nodes: Nodes) -> None:
        """Starts before the first trial; Ray must be connected."""
        self.controller = controller
        self._nodes = nodes
        self.trial_ids: dict[str, str] = {}
        """Our id of each Ray trial that is running."""
        self._receivers: dict[str, Receiver] = {}
        study = controller.study
        search, loop = study.search, study.loop
        self._most_devices = most_devices(study.space) if loop is None else 1
        self._loop = "" if loop is None else loop.packed
        self._heartbeat_s = max(HEARTBEAT_S, search.at_once / HEARTBEATS_PER_S)
        self._report_every_s = max(REPORT_EVERY_S, search.at_once / REPORTS_PER_S)
        self._time = OwnTime()
        limit_s = search.hang_after_s + self._heartbeat_s + MARGIN_S
        self._heartbeats = HeartbeatMonitor(limit_s=limit_s, kill=ray.kill, time=self._time)
        self._stall = StallMonitor(limit_s=search.hang_after_s, time=self._time)
        self._killed: dict[str, StopReason] = {}
        self._told_budget: dict[str, float | None] = {}
        """The time budget that each trial's process knows of [s]."""
        self._stopping: set[str] = set()
        """Ray trials that were stopped by hand, whose processes have not heard of it."""
        self._has_run = False
        self.failure: ServiceError | None = None
        """Why the search cannot continue."""
        self.is_stopping = False
        """Whether Ctrl-C came."""

    def propose(self, ray_id: str) -> dict[str, Any] | None:
        """Returns the configuration of the next trial's process; None if there is none now."""
        spec = self.controller.propose()
        if spec is None:
            return None
        search = self.controller.study.search
        self._told_budget[ray_id] = search.time_budget_s
        self.trial_ids[ray_id] = spec.trial_id
        self._receivers[ray_id] = Receiver()
        return {
            "spec": spec.model_dump_json(),
            "plugins": shipped(),
            "loop": self._loop,
            "devices": spec.devices,
            "resources": search.resources.model_dump_json(),
            **self._nodes.placement(),
            "folder": str(self.controller.ledger.folder),
            "stop_after_s": self.controller.time_left_s(),
            "hang_after_s": search.hang_after_s,
            "heartbeat_s": self._heartbeat_s,
            "report_every_s": self._report_every_s,
        }

    def reported(self, ray_id: str, report: Mapping[str, Any]) -> bool:
        """Takes the report of a running trial; returns whether to stop it."""
        self._heartbeats.beat(ray_id)
        if "record" not in report or ray_id not in self.trial_ids:
            return False
        self._has_run = True
        record = self._receivers[ray_id].record(report)
        if report.get("end") == "hung":  # Its process ends at the next request for a report.
            self._forget(ray_id)
            self.controller.finished(record)
            return False
        if self.controller.evaluated(record) is None:
            return False
        self._forget(ray_id)
        return True

    def ended(self, ray_id: str, report: Mapping[str, Any]) -> None:
        """Takes the last report of a trial."""
        if ray_id not in self.trial_ids:
            return  # Stopped by us; its record is written.
        receiver, trial_id = self._receivers[ray_id], self._forget(ray_id)
        if report["end"] == "interrupted":
            left_s = self.controller.time_left_s()
            is_again = left_s is None or left_s > 0  # The budget was changed in that moment.
            self.controller.interrupted(
                trial_id, reason=StopReason.of(StopKind.BUDGET_OVER), is_again=is_again
            )
            return
        self.controller.finished(receiver.record(report))

    def steer(self, stops: list[str], actors: Callable[[], Mapping[str, Any]]) -> None:
        """Tells the processes of trials what people changed: `stops` are trials to end."""
        search = self.controller.study.search
        for trial_id in stops:
            ray_id = next(ray for ray, ours in self.trial_ids.items() if ours == trial_id)
            self._forget(ray_id)
            self._stopping.add(ray_id)
        stops.clear()
        late = [i for i in self.trial_ids if self._told_budget[i] != search.time_budget_s]
        if not late and not self._stopping:
            return
        # What has no process yet hears of it later.
        handles = actors()
        for ray_id in self._stopping & handles.keys():
            handles[ray_id].stop_trial.remote()
        self._stopping -= handles.keys()
        for ray_id in handles.keys() & late:
            handles[ray_id].stop_after.remote(self.controller.time_left_s())
            self._told_budget[ray_id] = search.time_budget_s

    def died(self, ray_trial: RayTrial) -> None:
        """Takes the death of a trial's process."""
        ray_id = ray_trial.trial_id
        self._stopping.discard(ray_id)
        overdue = self._killed.pop(ray_id, None)
        if ray_id not in self.trial_ids:
            return
        trial_id = self._forget(ray_id)
        details = readable(_error_text(ray_trial))
        last_line = one_line(details.strip().splitlines()[-1])
        if not self._has_run and f"{SetUpFailed.__name__}: " in last_line:
            # The next process would fare no better: the search ends, and nothing has failed in it.
            self.failure = ServiceError(last_line.partition(f"{SetUpFailed.__name__}: ")[2])
            self.controller.interrupted(
                trial_id, reason=StopReason.of(StopKind.OTHER, text=str(self.failure))
            )
            return
        reason = overdue or StopReason.of(StopKind.PROCESS_DIED, message=last_line)
        is_blameless = overdue is None and any(text in details for text in NODE_DIED)
        if is_blameless:
            reason = StopReason.of(StopKind.NODE_DIED)
        self.controller.died(trial_id, reason=reason, details=details, is_blameless=is_blameless)

    def check_liveness(self, actors: Callable[[], Mapping[str, Any]]) -> None:
        """Kills processes that send no heartbeat; gives up where no node has room for a trial."""
        if not self._time.is_time_to_look():
            return
        handles, search = actors(), self.controller.study.search
        for ray_id in self._heartbeats.look(handles):
            quiet_s = search.hang_after_s
            self._killed[ray_id] = StopReason.of(StopKind.SILENT, quiet_s=quiet_s)
        if not self._stall.look(is_waiting=bool(self.trial_ids), is_running=bool(handles)):
            return
        there, wanted = ray.cluster_resources(), search.resources.bundle()
        wanted = {name: amount * self._most_devices for name, amount in wanted.items()}
        where = f" on {self._nodes.device_type}" if self._nodes.device_type else ""
        self.failure = self.failure or ServiceError(
            f"a node must have room for a trial, which asks for {_amounts(wanted)}{where}, but for"
            f" {search.hang_after_s:g} s none had; all nodes together have"
            f" {_amounts({name: there.get(name, 0.0) for name in wanted})}. Bring back the nodes"
            " that are gone, or free them, and go on with --resume: no finished trial is lost."
        )

    def _forget(self, ray_id: str) -> str:
        del self._receivers[ray_id], self._told_budget[ray_id]
        return self.trial_ids.pop(ray_id)


def _amounts(resources: Mapping[str, float]) -> str:
    """Returns Ray's resources for people, such as `2 CPU, 0.5 GPU, 4 GiB of memory`."""
    units = {"memory": (2**30, "GiB of memory")}
    scaled = {name: units.get(name, (1, name)) for name in resources}
    return ", ".join(f"{resources[n] / unit:g} {text}" for n, (unit, text) in scaled.items())


def _error_text(ray_trial: RayTrial) -> str:
    """Returns Ray's note on a trial's death, on this machine, headline last."""
    file = ray_trial.error_file
    if file is None or not Path(file).exists():
        return "it could not start, and Ray gives no error; see Ray's logs"
    text = Path(file).read_text()
    actor_died = "The actor died unexpectedly before finishing this task."
    return f"{text}\n{actor_died}" if actor_died in text else text


class _Unpickled:
    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles searcher and callbacks from time to time; ours are rebuilt from the ledger.
        return {}


class _Searcher(_Unpickled, Searcher):  # type: ignore[misc]
    def __init__(self, adapter: Adapter, on_wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._adapter, self._on_wait = adapter, on_wait

    def suggest(self, trial_id: str) -> Any:
        config = self._adapter.propose(trial_id)
        # A trial whose process dies is proposed again, so the search is over when nothing runs.
        controller = self._adapter.controller
        if config is None and not controller.running:
            if not controller.is_paused or controller.is_over() or self._adapter.is_stopping:
                return Searcher.FINISHED
            # Until there is a trial, Tune asks once a second and does nothing else.
            self._on_wait()
        return config

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        return True

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Does nothing: the callback has seen the result before."""

    def save(self, checkpoint_path: str) -> None:
        """Saves nothing: a search is resumed from the ledger."""

    def restore(self, checkpoint_path: str) -> None:
        """Restores nothing, see `save`."""


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self._adapter = adapter
        self.controller: Any = None
        """Tune's, which has the actors of trials, from the first trial on."""

    def on_trial_add(self, tune_controller: Any, trial: RayTrial) -> None:
        """Takes note of Tune's controller."""
        self.controller = tune_controller._tune_controller  # Under a wrapper.

    def on_trial_result(self, tune_controller: Any, trial: RayTrial, result: dict[str, Any]) -> str:
        """Returns CONTINUE, also for a trial that is stopped."""
        # Told to stop it, Tune would give its process the next trial while this one still trains.
        # So the process is told directly, and reports its end when its thread has left the trial.
        if self._adapter.reported(trial.trial_id, result):
            trial.temporary_state.ray_actor.stop_trial.remote()
        return str(TrialScheduler.CONTINUE)

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """Leaves the order to Tune; FIFOScheduler would loop over all trials there ever were."""

    def actors(self) -> Mapping[str, Any]:
        return {} if self.controller is None else compat.trial_actors(self.controller)


class _NoProgress(_Unpickled, TrialProgressCallback):  # type: ignore[misc]
    """Stands where Tune would put one of its own, which keeps all trials for ever."""

    def on_trial_result(self, *_: Any, **info: Any) -> None: ...
    def on_trial_error(self, *_: Any, **info: Any) -> None: ...
    def on_trial_complete(self, *_: Any, **info: Any) -> None: ...


class _Callback(_Unpickled, tune.Callback):  # type: ignore[misc]
    def __init__(
        self,
        adapter: Adapter,
        scheduler: _Scheduler,
        on_tick: Callable[[], None],
        on_stop: Callable[[], None] = lambda: None,
        steer: Callable[[], None] = lambda: None,
    ) -> None:
        self._adapter, self._scheduler, self._steer = adapter, scheduler, steer
        self._on_tick, self._on_stop, self._ticked_s = on_tick, on_stop, 0.0

    def setup(self, **info: Any) -> None:
        """Hears Ctrl-C before Tune does, which first ends all trials: that may take ten seconds."""
        theirs = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(theirs):
            return

        def heard(number: int, frame: FrameType | None) -> None:
            self._adapter.is_stopping = True
            # In a thread of its own: the signal may have come in the middle of a line.
            threading.Thread(target=self._on_stop).start()
            theirs(number, frame)

        signal.signal(signal.SIGINT, heard)

    def on_step_end(self, iteration: int, trials: list[RayTrial], **info: Any) -> None:
        """Checks heartbeats; Tune calls at least ten times a second, with or without results."""
        self._steer()
        self._adapter.check_liveness(self._scheduler.actors)
        if self._adapter.failure is not None:
            self._scheduler.controller.request_stop_experiment()
        if time.monotonic() - self._ticked_s > TICK_S:
            if self._scheduler.controller is not None:
                compat.forget_ended(self._scheduler.controller)
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
        # Ray keeps each trial's last result in its own state, where a curve only takes memory.
        result.pop("record", None)

    def on_trial_error(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any
    ) -> None:
        self._adapter.died(trial)
        compat.without_origin(trial)

    def on_experiment_end(self, trials: list[RayTrial], **info: Any) -> None:
        for trial_id in self._adapter.controller.running:
            self._adapter.controller.interrupted(
                trial_id, reason=StopReason.of(StopKind.SEARCH_STOPPED)
            )


def run_search(
    controller: SearchController,
    nodes: Nodes,
    *,
    on_tick: Callable[[], None],
    on_stop: Callable[[], None] = lambda: None,
    process: type[TrialProcess] = TrialProcess,
    steering: Steering | None = None,
) -> None:
    """Runs trials until the controller proposes no more; Ctrl-C stops it and keeps what finished.

    `on_stop` is called at once when Ctrl-C came. `steering` acts on what people ask meanwhile.

    Raises: ServiceError if for `search.hang_after` no node has room for a trial.
    """
    adapter = Adapter(controller, nodes)
    scheduler = _Scheduler(adapter)
    study = controller.study

    def steer() -> None:
        if steering is not None:
            steering.look()
            adapter.steer(steering.stops, scheduler.actors)
            limiter.set_max_concurrency(controller.study.search.at_once)

    def wait() -> None:
        steer()
        on_tick()

    limiter = tune.search.ConcurrencyLimiter(
        _Searcher(adapter, wait), max_concurrent=study.search.at_once
    )
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1e9")  # Nobody reads it.
    if nodes.is_local:
        compat.use_prestarted_workers()
    with (
        # Ray's state of the experiment: nothing in it that the ledger does not have.
        TemporaryFolder() as folder,
        # Tune leaves its handlers in place: after a search by the API the first Ctrl-C would be
        # swallowed.
        handlers_kept(signal.SIGINT, signal.SIGUSR1),
    ):
        if compat.is_client():
            compat.run_tune_here(folder)
        tune.run(
            process,
            name="ray",
            storage_path=str(folder),
            num_samples=10**9,  # The searcher says when it is over.
            search_alg=limiter,
            scheduler=scheduler,
            callbacks=[_Callback(adapter, scheduler, on_tick, on_stop, steer), _NoProgress()],
            # Tune keeps the device of a process that it may reuse. On two devices, a trial of both
            # would wait for ever for the one of a trial that has ended.
            reuse_actors=study.loop is not None or most_devices(study.space) == 1,
            verbose=0,
            raise_on_failed_trial=False,
            trial_dirname_creator=lambda trial: trial.trial_id,
            _remote=False,
        )
    controller.clear_checkpoints()
    if adapter.failure is not None:
        raise adapter.failure
