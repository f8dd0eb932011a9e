"""The process in which Ray Tune runs trials.

torch is imported when a trial begins: the driver, which names the class, does without.
"""

import gc
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ray import tune

from tune_speed.components.plugins.registry import receive
from tune_speed.core.errors import DeviceFailed, readable, traceback_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.words import StopKind, StopReason
from tune_speed.custom.shipping import calling
from tune_speed.custom.spec import OwnSpec, read_spec
from tune_speed.runtime import heartbeat, process
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.checkpoint.store import discard
from tune_speed.training.trial import SpecBase, TrialSpec, make_record, utc_now
from tune_speed.tuning.driver.trial_files import write_trial_file
from tune_speed.tuning.ray.liveness import (
    LEAVE_S,
    Watchdog,
    end_report,
    leave,
    running_report,
    watch_rank,
)
from tune_speed.tuning.ray.node_query import on_nodes, set_up_device, set_up_worker

if TYPE_CHECKING:
    from tune_speed.training.objective import Trial

# How long a trial that is told to stop may take for its step [s]; after that its process ends.
END_S = 60.0

Tell = Callable[[TrialRecord], None]
Work = Callable[[Tell], TrialRecord]


class End(NamedTuple):
    """How a trial ended."""

    record: TrialRecord | None = None
    """None where `error` says why."""
    error: BaseException | None = None
    is_hung: bool = False
    """Whether the thread is still in it."""


class TrialThread:
    """Runs all trials of a process: torch's settings, pools and handles belong to a thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: TrialRecord | None = None
        self._end: End | None = None
        self._reported_s = float("-inf")
        self._number = 0
        self._trials: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="training", daemon=True)
        self.thread.start()

    def begin(self, work: Work) -> None:
        """Begins a trial and returns at once; the one before it must have ended."""
        with self._changed:
            assert self._number == 0 or self._end is not None, "the trial before still runs"
            self._newest, self._end = None, None
            self._number += 1
            self._trials.put((self._number, work))

    def poll(self, *, timeout_s: float, every_s: float = 0.0) -> TrialRecord | End | None:
        """Returns the newest record, every `every_s` at most, or the end; None if nothing came."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._wait(lambda: self._newest is not None, deadline_s)
            # With a record there, wait for those that soon follow.
            self._wait(lambda: False, min(deadline_s, self._reported_s + every_s))
            if self._end is not None:
                return self._end
            newest, self._newest = self._newest, None
            if newest is not None:
                self._reported_s = time.monotonic()
            return newest

    def has_ended(self, *, timeout_s: float) -> bool:
        with self._changed:
            self._wait(lambda: False, time.monotonic() + timeout_s)
            return self._number == 0 or (self._end is not None and not self._end.is_hung)

    def give_up(self, end: End, *, keep: Callable[[], None] = lambda: None) -> bool:
        """Ends the trial with `end`; returns whether it still ran, and then calls `keep` first."""
        with self._changed:
            if self._end is not None:
                return False
            self._number += 1  # Later reports of the trial are ignored.
            keep()
            self._end = end
            self._changed.notify_all()
            return True

    def _wait(self, is_enough: Callable[[], bool], deadline_s: float) -> None:
        """Waits, holding the lock, until the trial ended, or `is_enough`, or time is up."""
        while self._end is None and not is_enough():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _run(self) -> None:
        while True:
            number, work = self._trials.get()
            end = self._run_trial(number, work)
            with self._changed:
                if number == self._number:
                    self._end = end
                    self._changed.notify_all()
            del work, end  # Nothing of a trial stays in memory until the next one.

    def _run_trial(self, number: int, work: Work) -> End:
        def tell(record: TrialRecord) -> None:
            with self._changed:
                if number == self._number:
                    self._newest = record
                    self._changed.notify_all()

        try:
            return End(record=work(tell))
        except Exception as error:  # Re-raised in the thread that polls.
            return End(error=error)
        except BaseException as error:  # Ray would take SystemExit for the actor's own.
            raised = RuntimeError(f"the trial raised {error!r}")
            return End(error=raised.with_traceback(error.__traceback__))


@dataclass
class _Taken:
    spec: SpecBase
    config: Mapping[str, Any]
    started_at: str = field(default_factory=utc_now)
    num_sent: int = 0
    newest: TrialRecord | None = None
    deadline_s: float = math.inf
    """When it is interrupted, on the monotonic clock."""
    is_stopped: bool = False
    """Whether the driver has decided its outcome."""
    is_cut_short: bool = False
    """Whether its process takes another one, or ends."""
    is_hung: bool = False

    def is_over(self) -> bool:
        return self.is_stopped or self.is_cut_short or time.monotonic() > self.deadline_s

    def write(self, record: TrialRecord) -> None:
        write_trial_file(Path(self.config["folder"]), record)

    def failed(self, reason: StopReason, details: str) -> TrialRecord:
        failed = {"status": Status.FAILED, "stop_reason": reason, "traceback": details}
        newest = self.newest
        if newest is None:
            run = RunResult(seed=self.spec.seed, **failed)
            return make_record(self.spec, self.spec.recipe, run, started_at=self.started_at)
        run = newest.runs[-1].model_copy(update=failed)
        update = {"status": Status.FAILED, "runs": (run,), "finished_at": utc_now()}
        return newest.model_copy(update=update)


class TrialProcess(tune.Trainable):  # type: ignore[misc]
    """Runs trials one after the other in one process, so that torch is imported once.

    The driver requests the next report, again and again; each brings all that is new, or after a
    while without anything new a heartbeat. Told to stop a trial, the process reports its end when
    its thread has left it, so that no trial meets another on its device.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        each = ResourceConfig.model_validate_json(config["resources"]).bundle()
        # All devices of a trial are in one bundle, so on one node, and reserved at once.
        bundle = {name: amount * config["devices"] for name, amount in each.items()}
        there = on_nodes(config.get("node_ids") or [])
        if not there:
            return tune.PlacementGroupFactory([bundle])
        return tune.PlacementGroupFactory([bundle], bundle_label_selector=[there])

    def setup(self, config: dict[str, Any]) -> None:
        set_up_worker()
        self._thread = TrialThread()
        self._watchdog = Watchdog(on_hang=self._hung)
        self._is_settled = False
        self._warm = set[str]()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._begin(new_config)
        return True

    def train(self) -> dict[str, Any]:
        self._iteration += 1
        return {"done": False, "training_iteration": self._iteration, **self.step()}

    def step(self) -> dict[str, Any]:
        """Returns the next report of the trial, see `liveness`. Raises: what the trial raises."""
        trial = self._trial
        if trial.is_hung:
            leave()  # A further request says that the driver has the record.
        if trial.is_stopped:
            self._end_trial()
            if trial.spec.checkpoint is not None:  # It may be newer than the driver's decision.
                discard(trial.spec.checkpoint.place)
            return end_report("stopped")
        found = self._thread.poll(
            timeout_s=trial.config["heartbeat_s"], every_s=trial.config["report_every_s"]
        )
        if isinstance(found, TrialRecord):
            before = trial.num_sent
            trial.num_sent = len(found.runs[-1].evaluations)
            return running_report(found, before=before)
        return {} if found is None else self._ended(found)

    def stop_trial(self) -> None:
        """Ends the trial, which has its outcome, before its next step; `step` reports when."""
        self._trial.is_stopped = True

    def stop_after(self, left_s: float | None) -> None:
        """Changes how much time is left before the trial is interrupted [s]; None: no limit."""
        self._trial.deadline_s = math.inf if left_s is None else time.monotonic() + left_s

    def cleanup(self) -> None:
        """Ends the trial at its present step and frees its memory."""
        self._trial.is_cut_short = True
        self._end_trial()
        gc.collect()
        if not self._is_settled:
            process.settle()
            self._is_settled = True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Saves nothing: trials save themselves, see `checkpoint`."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Loads nothing, see `save_checkpoint`."""

    def _end_trial(self) -> None:
        if not self._thread.has_ended(timeout_s=END_S):
            leave()
        self._watchdog.rest()

    def _begin(self, config: dict[str, Any]) -> None:
        # The specification names what the plugins bring.
        receive(config.get("plugins", ""))
        # A local name: `self._trial` may be the next one before this one's thread has ended.
        trial = self._trial = _Taken(read_spec(config["spec"]), config)
        self.stop_after(config["stop_after_s"])
        if trial.spec.devices == 1:  # Ranks have a watchdog of their own.
            self._watchdog.watch(limit_s=config["hang_after_s"])
        self._thread.begin(lambda tell: self._recorded(trial, tell))

    def _interrupt(self) -> bool:
        return self._trial.is_over()

    def _recorded(self, trial: _Taken, tell: Tell) -> TrialRecord:

        def on_report(record: TrialRecord) -> None:
            trial.newest = record
            tell(record)

        try:
            record = self._run(trial.spec, trial.config, on_report)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Ray, Tune and Python give these a meaning of their own: an actor's exit, Ctrl-C.
            record = trial.failed(StopReason.of_error(error), traceback_of(error))
        if not trial.is_stopped and not trial.is_hung:
            trial.write(record)
        return record

    def _run(self, spec: SpecBase, config: Mapping[str, Any], on_report: Tell) -> TrialRecord:
        if isinstance(spec, TrialSpec):
            from tune_speed.training.objective import finish

            heartbeat.beat()  # After the import of torch, see `liveness.START_S`.
            return finish(self._open(spec, config), on_report=on_report)
        assert isinstance(spec, OwnSpec)
        from tune_speed.custom.trial import run_own_trial

        set_up_device(spec.allotment, config.get("device_type"))
        train = calling(config["loop"])
        stop, refuse = self._interrupt, (DeviceFailed,)
        return run_own_trial(spec, train, interrupt=stop, on_report=on_report, refuse=refuse)

    def _open(self, spec: TrialSpec, config: Mapping[str, Any]) -> "Trial":
        if spec.devices > 1:
            from tune_speed.training.distributed.local import run_here
            from tune_speed.training.distributed.supervisor import RanksDied

            # Rank 0, which waits for the others, is watched: its process ends where it hangs.
            limit_s, refused = config["hang_after_s"], (DeviceFailed, RanksDied)
            watch = partial(watch_rank, limit_s=limit_s) if limit_s < math.inf else None
            return run_here(spec, interrupt=self._interrupt, refuse=refused, watch=watch)
        from tune_speed.training.objective import run_trial

        set_up_device(spec.allotment, config.get("device_type"))
        stop, refuse = self._interrupt, (DeviceFailed,)
        return run_trial(spec, interrupt=stop, refuse=refuse, warm=self._warm)

    def _ended(self, end: End) -> dict[str, Any]:
        self._watchdog.rest()
        if end.error is None:
            return end_report("hung" if end.is_hung else "finished", end.record)
        from tune_speed.training.loop import Interrupted

        if isinstance(end.error, Interrupted):
            return end_report("interrupted")
        raise end.error

    def _hung(self, stacks: str, quiet_s: float) -> None:
        trial = self._trial
        record = trial.failed(StopReason.of(StopKind.HUNG, quiet_s=quiet_s), readable(stacks))

        def keep() -> None:
            trial.is_hung = True
            if not trial.is_stopped and not trial.is_cut_short:
                trial.write(record)

        if not self._thread.give_up(End(record=record, is_hung=True), keep=keep):
            return  # It has just ended.
        time.sleep(LEAVE_S)
        leave()
