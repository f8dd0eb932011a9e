"""Runs the trials of a search with Ray Tune; every decision is the controller's."""

# Ray's own experiment state is not used to resume: it holds neither the trial scheduler's state nor
# what a searcher was told last. Tune's clock counts imports and waiting, so it is not used either.

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.errors import ServiceError, SetUpFailed, one_line, readable
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import switch
from tune_speed.core.words import StopKind, StopReason
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.runtime.process import handlers_kept
from tune_speed.study.validation import most_devices
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.steering import Steering
from tune_speed.tuning.ray import compat
from tune_speed.tuning.ray.liveness import MARGIN_S, START_S, OwnTime, received
from tune_speed.tuning.ray.nodes import Nodes
from tune_speed.tuning.ray.trial_process import TrialProcess

# Of a process, and of all together. Ctrl-C waits for a heartbeat; a report takes the driver 2 ms,
# and has what was evaluated in between.
HEARTBEAT_S, HEARTBEATS_PER_S = 2.0, 16
REPORT_EVERY_S, REPORTS_PER_S = 0.05, 200
# Shortest time between two looks at the view [s]: with many trials Tune's loop runs fast.
TICK_S = 0.1
# What Ray says of a process that is not to blame for its end.
NODE_DIED = ("its node has died", "is unavailable: ")


@dataclass
class RayTrial:
    """A trial that Ray runs: from its proposal until its process is done with it."""

    trial_id: str
    time_budget_s: float | None
    """The time budget that its process knows of [s]."""
    newest: TrialRecord | None = None
    has_ended: bool = False
    """Whether it has its outcome, which its process may not have heard yet."""
    must_stop: bool = False
    """Whether it was stopped by hand, and its process has not heard of it."""
    beat_s: float | None = None
    """Its last heartbeat on the driver's own time [s]; None until it has a process."""
    overdue: StopReason | None = None


class Adapter:
    """What searcher, trial scheduler and callback share: the trials by Ray's ids of them."""

    def __init__(self, controller: SearchController, nodes: Nodes) -> None:
        self.controller = controller
        self._nodes = nodes
        self._trials: dict[str, RayTrial] = {}
        search = controller.study.search
        self._heartbeat_s = max(HEARTBEAT_S, search.at_once / HEARTBEATS_PER_S)
        self._report_every_s = max(REPORT_EVERY_S, search.at_once / REPORTS_PER_S)
        self._time = OwnTime()
        self._limit_s = search.hang_after_s + self._heartbeat_s + MARGIN_S
        self._stalled_since_s: float | None = None
        self._has_run = False
        self.failure: ServiceError | None = None
        self.is_stopping = False

    def propose(self, ray_id: str) -> dict[str, Any] | None:
        """Returns the configuration of the next trial's process; None if there is none now."""
        spec = self.controller.propose()
        if spec is None:
            return None
        controller, loop = self.controller, self.controller.study.loop
        search = controller.study.search
        self._trials[ray_id] = RayTrial(spec.trial_id, search.time_budget_s)
        return {
            "spec": spec.model_dump_json(),
            "plugins": shipped(),
            "loop": "" if loop is None else loop.packed,
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
        trial = self._trials.get(ray_id)
        if trial is None:
            return False
        trial.beat_s = self._time.passed_s
        if "record" not in report or trial.has_ended:
            return False
        self._has_run = True
        record = trial.newest = received(report, trial.newest)
        if report.get("end") == "hung":  # Its process ends at the next request for a report.
            trial.has_ended = True
            self.controller.finished(record)
            return False
        if self.controller.evaluated(record) is None:
            return False
        trial.has_ended = True
        return True

    def ended(self, ray_id: str, report: Mapping[str, Any]) -> None:
        trial = self._trials.pop(ray_id, None)
        if trial is None or trial.has_ended:
            return  # Stopped by us; its record is written.
        if report["end"] == "interrupted":
            left_s, reason = self.controller.time_left_s(), StopReason.of(StopKind.BUDGET_OVER)
            is_again = left_s is None or left_s > 0  # The budget was changed in that moment.
            self.controller.interrupted(trial.trial_id, reason=reason, is_again=is_again)
            return
        self.controller.finished(received(report, trial.newest))

    def steer(self, stops: list[str], actors: Callable[[], Mapping[str, Any]]) -> None:
        """Tells the processes of trials what people changed: `stops` are trials to end."""
        budget_s = self.controller.study.search.time_budget_s
        late: dict[str, RayTrial] = {}
        for ray_id, trial in self._trials.items():
            if not trial.has_ended and trial.trial_id in stops:
                trial.has_ended = trial.must_stop = True
            has_news = trial.must_stop if trial.has_ended else trial.time_budget_s != budget_s
            if has_news:
                late[ray_id] = trial
        stops.clear()
        if not late:
            return
        # What has no process yet hears of it later.
        handles = actors()
        for ray_id in handles.keys() & late:
            if late[ray_id].must_stop:
                handles[ray_id].stop_trial.remote()
                late[ray_id].must_stop = False
            else:
                handles[ray_id].stop_after.remote(self.controller.time_left_s())
                late[ray_id].time_budget_s = budget_s

    def died(self, ray_trial: Trial) -> None:
        trial = self._trials.pop(ray_trial.trial_id, None)
        if trial is None or trial.has_ended:
            return
        details = readable(_error_text(ray_trial))
        last_line = one_line(details.strip().splitlines()[-1])
        if not self._has_run and f"{SetUpFailed.__name__}: " in last_line:
            # The next process would fare no better: the search ends, and nothing has failed in it.
            self.failure = ServiceError(last_line.partition(f"{SetUpFailed.__name__}: ")[2])
            why = StopReason.of(StopKind.OTHER, text=str(self.failure))
            self.controller.interrupted(trial.trial_id, reason=why)
            return
        reason = trial.overdue or StopReason.of(StopKind.PROCESS_DIED, message=last_line)
        is_blameless = not trial.overdue and any(text in details for text in NODE_DIED)
        if is_blameless:
            reason = StopReason.of(StopKind.NODE_DIED)
        self.controller.died(
            trial.trial_id, reason=reason, details=details, is_blameless=is_blameless
        )

    def check_liveness(self, actors: Callable[[], Mapping[str, Any]]) -> None:
        if not self._time.is_time_to_look():
            return
        handles, now_s = actors(), self._time.passed_s
        hang_after_s = self.controller.study.search.hang_after_s
        for ray_id in handles.keys() & self._trials.keys():
            trial = self._trials[ray_id]
            trial.beat_s = now_s + START_S if trial.beat_s is None else trial.beat_s
            if now_s - trial.beat_s > self._limit_s:
                ray.kill(handles[ray_id])
                trial.overdue = StopReason.of(StopKind.SILENT, quiet_s=hang_after_s)
                trial.beat_s = now_s  # Ray may take a while to report the death.
        if handles or all(each.has_ended for each in self._trials.values()):
            self._stalled_since_s = None
            return
        if self._stalled_since_s is None:
            self._stalled_since_s = now_s
        if now_s - self._stalled_since_s > hang_after_s:
            self.failure = self.failure or self._no_room()

    def _no_room(self) -> ServiceError:
        study = self.controller.study
        search = study.search
        devices = most_devices(study.space) if study.loop is None else 1
        wanted = {name: each * devices for name, each in search.resources.bundle().items()}
        there = ray.cluster_resources()
        where = f" on {self._nodes.device_type}" if self._nodes.device_type else ""
        return ServiceError(
            f"a node must have room for a trial, which asks for {_amounts(wanted)}{where}, but for"
            f" {search.hang_after_s:g} s none had; all nodes together have"
            f" {_amounts({name: there.get(name, 0.0) for name in wanted})}. Bring back the nodes"
            f" that are gone, or free them, and go on with {switch('resume')}: no finished trial is"
            " lost."
        )


def _amounts(resources: Mapping[str, float]) -> str:
    units = {"memory": (2**30, "GiB of memory")}
    scaled = {name: units.get(name, (1, name)) for name in resources}
    return ", ".join(f"{resources[n] / unit:g} {text}" for n, (unit, text) in scaled.items())


def _error_text(ray_trial: Trial) -> str:
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
        if config is None and not controller.trials.running:
            if not controller.is_paused or controller.is_over() or self._adapter.is_stopping:
                return Searcher.FINISHED
            # Until there is a trial, Tune asks once a second and does nothing else.
            self._on_wait()
        return config

    def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
        return True

    # The callback has seen the result before, and a search is resumed from the ledger.
    def on_trial_complete(self, *_: Any, **info: Any) -> None: ...
    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self._adapter = adapter
        self.controller: Any = None
        """Tune's, which has the actors of trials, from the first trial on."""

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self.controller = tune_controller._tune_controller  # Under a wrapper.

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
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

    def on_step_end(self, **info: Any) -> None:
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

    def on_trial_result(self, *, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        if result.get("done"):
            self._adapter.ended(trial.trial_id, result)
        # Ray keeps each trial's last result in its own state, where a curve only takes memory.
        result.pop("record", None)

    def on_trial_error(self, *, trial: Trial, **info: Any) -> None:
        self._adapter.died(trial)
        compat.without_origin(trial)

    def on_experiment_end(self, **info: Any) -> None:
        reason = StopReason.of(StopKind.SEARCH_STOPPED)
        for trial_id in tuple(self._adapter.controller.trials.running):
            self._adapter.controller.interrupted(trial_id, reason=reason)


def run_search(
    controller: SearchController,
    nodes: Nodes,
    *,
    on_tick: Callable[[], None],
    on_stop: Callable[[], None] = lambda: None,
    process: type[TrialProcess] = TrialProcess,
    steering: Steering | None = None,
) -> None:
    """Runs trials to the end; Ctrl-C stops it and calls `on_stop` at once. Raises: ServiceError."""
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

    searcher = _Searcher(adapter, wait)
    limiter = tune.search.ConcurrencyLimiter(searcher, max_concurrent=study.search.at_once)
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1e9")  # Nobody reads it.
    if nodes.is_local:
        compat.use_prestarted_workers()
    with (
        # Ray's state of the experiment: nothing in it that the ledger does not have.
        TemporaryFolder() as folder,
        # Tune leaves its handlers in place: after a search by the API Ctrl-C would be swallowed.
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
            # A process that may be reused keeps its device: a trial of two would wait for ever.
            reuse_actors=study.loop is not None or most_devices(study.space) == 1,
            verbose=0,
            raise_on_failed_trial=False,
            trial_dirname_creator=lambda trial: trial.trial_id,
            _remote=False,
        )
    controller.trials.checkpoints.clear(controller.ledger.records)
    if adapter.failure is not None:
        raise adapter.failure
