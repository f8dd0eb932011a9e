"""The process in which Ray Tune runs trials.

torch is imported when a trial begins: the driver, which names the class, does without.
"""

import gc
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from tune_speed.tuning.ray.liveness import Watchdog, leave
from tune_speed.tuning.ray.node_query import on_nodes, set_up_device
from tune_speed.tuning.ray.reports import Sender
from tune_speed.tuning.ray.trial_thread import End, Tell, TrialThread
from tune_speed.tuning.ray.worker import set_up_worker

if TYPE_CHECKING:
    from tune_speed.training.objective import Trial

# How long a trial that is told to stop may take for its step [s]; after that its process ends.
END_S = 60.0
# Time for the driver to receive the record of a trial that hangs, before its process ends [s].
LEAVE_S = 30.0


class TrialProcess(tune.Trainable):  # type: ignore[misc]
    """Runs trials one after the other in one process, so that torch is imported once.

    They train in a thread of their own (`trial_thread`). The driver requests the next report, again
    and again; each brings all that is new, or after a while without anything new a heartbeat. Told
    to stop a trial, the process reports its end when its thread has left it, so that no trial meets
    another on its device.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Returns what Tune reserves for a trial, on the nodes where trials may run."""
        each = ResourceConfig.model_validate_json(config["resources"]).bundle()
        # All devices of a trial are in one bundle, so on one node, and reserved at once.
        bundle = {name: amount * config["devices"] for name, amount in each.items()}
        there = on_nodes(config.get("node_ids") or [])
        if not there:
            return tune.PlacementGroupFactory([bundle])
        return tune.PlacementGroupFactory([bundle], bundle_label_selector=[there])

    def setup(self, config: dict[str, Any]) -> None:
        """Takes the first trial, which imports torch."""
        set_up_worker()
        self._thread = TrialThread()
        self._watchdog = Watchdog(on_hang=self._hung)
        self._is_settled = False
        self._warm = set[str]()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes the next trial."""
        self.cleanup()
        self._begin(new_config)
        return True

    def train(self) -> dict[str, Any]:
        """Returns the next report, without what Tune would add to each."""
        self._iteration += 1
        return {"done": False, "training_iteration": self._iteration, **self.step()}

    def step(self) -> dict[str, Any]:
        """Returns the next report of the trial, see `reports`. Raises: what the trial raises."""
        if self._is_hung:
            leave()  # A further request says that the driver has the record.
        if self._is_stopped:
            self._end_trial()
            if self._spec.checkpoint is not None:  # It may be newer than the driver's decision.
                discard(self._spec.checkpoint.place)
            return self._sender.ended("stopped")
        found = self._thread.poll(timeout_s=self._heartbeat_s, every_s=self._report_every_s)
        if isinstance(found, TrialRecord):
            return self._sender.standing(found)
        return {} if found is None else self._ended(found)

    def stop_trial(self) -> None:
        """Ends the trial, which has its outcome, before its next step; `step` reports when."""
        self._is_stopped = True

    def stop_after(self, left_s: float | None) -> None:
        """Changes how much time is left before the trial is interrupted [s]; None: no limit."""
        self._deadline_s = math.inf if left_s is None else time.monotonic() + left_s

    def cleanup(self) -> None:
        """Ends the trial at its present step and frees its memory."""
        self._is_cut_short = True
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
        self._spec = read_spec(config["spec"])
        self._folder = Path(config["folder"])
        self._heartbeat_s: float = config["heartbeat_s"]
        self._report_every_s: float = config["report_every_s"]
        self._sender = Sender()
        self._started_at = utc_now()
        self._is_stopped = self._is_cut_short = self._is_hung = False
        self._newest: TrialRecord | None = None
        self.stop_after(config["stop_after_s"])
        # A local name: the next trial's may be in `self._spec` before this one's thread has ended.
        spec = self._spec
        if spec.devices == 1:  # Ranks have a watchdog of their own.
            self._watchdog.watch(limit_s=config["hang_after_s"])
        self._thread.begin(lambda tell: self._recorded(spec, config, tell))

    def _interrupt(self) -> bool:
        return self._is_stopped or self._is_cut_short or time.monotonic() > self._deadline_s

    def _recorded(self, spec: SpecBase, config: dict[str, Any], tell: Tell) -> TrialRecord:
        """Runs the trial in its thread, and writes its record to a file, for a killed driver."""

        def on_report(record: TrialRecord) -> None:
            self._newest = record
            tell(record)

        try:
            record = self._run(spec, config, on_report)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Ray, Tune and Python give these a meaning of their own: an actor's exit, Ctrl-C.
            record = self._failed(spec, StopReason.of_error(error), traceback_of(error))
        if not self._is_stopped and not self._is_hung:
            write_trial_file(self._folder, record)
        return record

    def _run(self, spec: SpecBase, config: dict[str, Any], on_report: Tell) -> TrialRecord:
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

    def _open(self, spec: TrialSpec, config: dict[str, Any]) -> "Trial":
        if spec.devices > 1:
            from tune_speed.tuning.ray.multi_gpu import run_on_node

            hang_after_s = config["hang_after_s"]
            return run_on_node(spec, interrupt=self._interrupt, hang_after_s=hang_after_s)
        from tune_speed.training.objective import run_trial

        set_up_device(spec.allotment, config.get("device_type"))
        stop, refuse = self._interrupt, (DeviceFailed,)
        return run_trial(spec, interrupt=stop, refuse=refuse, warm=self._warm)

    def _ended(self, end: End) -> dict[str, Any]:
        self._watchdog.rest()
        if end.error is None:
            return self._sender.ended("hung" if end.is_hung else "finished", end.record)
        from tune_speed.training.loop import Interrupted

        if isinstance(end.error, Interrupted):
            return self._sender.ended("interrupted")
        raise end.error

    def _hung(self, stacks: str, quiet_s: float) -> None:
        """Ends a trial that hangs as failed, and this process with it; the watchdog calls."""
        reason = StopReason.of(StopKind.HUNG, quiet_s=quiet_s)
        record = self._failed(self._spec, reason, readable(stacks))

        def keep() -> None:
            self._is_hung = True
            if not self._is_stopped and not self._is_cut_short:
                write_trial_file(self._folder, record)

        if not self._thread.give_up(End(record=record, is_hung=True), keep=keep):
            return  # It has just ended.
        time.sleep(LEAVE_S)
        leave()

    def _failed(self, spec: SpecBase, reason: StopReason, details: str) -> TrialRecord:
        failed = {"status": Status.FAILED, "stop_reason": reason, "traceback": details}
        newest = self._newest
        if newest is None:
            run = RunResult(seed=spec.seed, **failed)
            return make_record(spec, spec.recipe, run, started_at=self._started_at)
        run = newest.runs[-1].model_copy(update=failed)
        update = {"status": Status.FAILED, "runs": (run,), "finished_at": utc_now()}
        return newest.model_copy(update=update)
