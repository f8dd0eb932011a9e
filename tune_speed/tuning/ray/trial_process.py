"""The process in which Ray runs trials.

What it needs of torch is imported when a trial begins, so that the driver, which only names the
class, does without.
"""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from ray import tune

from tune_speed.components.plugins.registry import receive
from tune_speed.core.errors import readable, reason_of, traceback_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.custom.shipping import calling
from tune_speed.custom.spec import OwnSpec, read_spec
from tune_speed.runtime import heartbeat, process
from tune_speed.runtime.process import end_with_parent
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.checkpoint.store import discard
from tune_speed.training.trial import SpecBase, TrialSpec, make_record, utc_now
from tune_speed.tuning.driver.trial_file import write_trial_file
from tune_speed.tuning.ray.node_query import on_nodes, refuse_other_device
from tune_speed.tuning.ray.reports import Sender
from tune_speed.tuning.ray.trial_thread import End, TrialThread
from tune_speed.tuning.ray.watchdog import Watchdog, leave

if TYPE_CHECKING:
    from tune_speed.training.objective import Trial

END_S = 60.0
"""How long a trial that is told to stop may take for its step [s]; after that its process ends."""
LEAVE_S = 30.0
"""How long the driver has to hear of a trial that hangs, before its process ends [s]."""


class TrialProcess(tune.Trainable):  # type: ignore[misc]
    """Runs trials one after the other in one process, so that torch is imported once.

    They train in a thread of their own (`trial_thread`). The driver asks for the next report, again
    and again; each brings all that is new, or after a while without news a sign of life. Told to
    stop a trial, the process reports its end once its thread is through with it, so that no trial
    meets another on its device.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Returns what Tune reserves for a trial, on the nodes where trials may run.

        Several devices are reserved by Ray Train, see `ray_ddp`; Tune must ask for something.
        """
        resources = ResourceConfig.model_validate_json(config["resources"])
        bundle = {"memory": 1.0} if config["devices"] > 1 else resources.bundle()
        there = on_nodes(config.get("node_ids") or [])
        if not there:
            return tune.PlacementGroupFactory([bundle])
        return tune.PlacementGroupFactory([bundle], bundle_label_selector=[there])

    def setup(self, config: dict[str, Any]) -> None:
        """Takes the first trial, which imports torch."""
        process.make_patient()
        end_with_parent()  # A frozen trial would not notice that Ray is gone.
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
            leave()  # The driver has the record, as it asks for more.
        if self._is_stopped:
            return self._stop()
        news = self._thread.news(timeout_s=self._heartbeat_s, every_s=self._report_every_s)
        if isinstance(news, TrialRecord):
            return self._sender.standing(news)
        return {} if news is None else self._ended(news)

    def stop_trial(self) -> None:
        """Ends the trial, which has its outcome, before its next step; `step` says when it has."""
        self._is_stopped = True

    def cleanup(self) -> None:
        """Ends the trial where it stands and frees what it holds."""
        self._is_cut_short = True
        if not self._thread.has_ended(timeout_s=END_S):
            leave()
        self._watchdog.rest()
        gc.collect()
        if not self._is_settled:
            process.settle()
            self._is_settled = True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Saves nothing: trials save themselves, see `checkpoint`."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Loads nothing, see `save_checkpoint`."""

    def _begin(self, config: dict[str, Any]) -> None:
        receive(config.get("plugins", ""))  # The specification names what they bring.
        self._spec = read_spec(config["spec"])
        self._folder = Path(config["folder"])
        self._heartbeat_s: float = config["heartbeat_s"]
        self._report_every_s: float = config["report_every_s"]
        self._sender = Sender()
        self._started_at = utc_now()
        self._is_stopped = self._is_cut_short = self._is_hung = False
        self._newest: TrialRecord | None = None
        deadline = _deadline(config["stop_after_s"])

        def interrupt() -> bool:
            return self._is_stopped or self._is_cut_short or time.monotonic() > deadline

        spec = self._spec  # Its own: the next trial's may be here before this one's thread is done.
        if spec.devices == 1:  # Ranks have their own.
            self._watchdog.watch(limit_s=config["hang_after_s"])
        self._thread.begin(lambda tell: self._recorded(spec, config, tell, interrupt=interrupt))

    def _recorded(
        self,
        spec: SpecBase,
        config: dict[str, Any],
        tell: Callable[[TrialRecord], None],
        *,
        interrupt: Callable[[], bool],
    ) -> TrialRecord:
        """Runs the trial in its thread, and writes its record down where the driver may miss it."""

        def on_report(record: TrialRecord) -> None:
            self._newest = record
            tell(record)

        try:
            record = self._run(spec, config, on_report, interrupt=interrupt)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Ray, Tune and Python take them for their own.
            reason, details = reason_of(error), traceback_of(error)
            record = _failed(self._newest, spec, reason, details, started_at=self._started_at)
        if not self._is_stopped and not self._is_hung:
            write_trial_file(self._folder, record)
        return record

    def _run(
        self,
        spec: SpecBase,
        config: dict[str, Any],
        on_report: Callable[[TrialRecord], None],
        *,
        interrupt: Callable[[], bool],
    ) -> TrialRecord:
        heartbeat.beat()
        if isinstance(spec, TrialSpec):
            from tune_speed.training.objective import finish

            return finish(self._open(spec, config, interrupt=interrupt), on_report=on_report)
        assert isinstance(spec, OwnSpec)
        from tune_speed.custom.trial import run_own_trial

        _keep_to_share(spec, config)
        train = calling(config["loop"])
        return run_own_trial(spec, train, interrupt=interrupt, on_report=on_report)

    def _open(
        self, spec: TrialSpec, config: dict[str, Any], *, interrupt: Callable[[], bool]
    ) -> "Trial":
        from tune_speed.training.objective import run_trial

        if spec.devices > 1:
            from tune_speed.tuning.ray.multi_gpu import run_on_cluster

            return run_on_cluster(
                spec,
                config["resources"],
                holdings=config["holdings"],
                interrupt=interrupt,
                node_ids=config.get("node_ids") or [],
                hang_after_s=config["hang_after_s"],
            )
        _keep_to_share(spec, config)
        return run_trial(spec, interrupt=interrupt, warm=self._warm)

    def _ended(self, end: End) -> dict[str, Any]:
        self._watchdog.rest()
        if end.error is None:
            return self._sender.ended("hung" if end.is_hung else "finished", end.record)
        from tune_speed.training.loop import Interrupted

        if isinstance(end.error, Interrupted):
            return self._sender.ended("interrupted")
        raise end.error

    def _stop(self) -> dict[str, Any]:
        if not self._thread.has_ended(timeout_s=END_S):
            leave()
        self._watchdog.rest()
        if self._spec.checkpoint is not None:  # It may have been saved since the driver decided.
            discard(self._spec.checkpoint.place)
        return self._sender.ended("stopped")

    def _hung(self, stacks: str, quiet_s: float) -> None:
        """Ends a trial that hangs as failed, and this process with it; the watchdog calls."""
        reason = f"hung: no step for {quiet_s:.0f} s"
        details = readable(stacks)
        record = _failed(self._newest, self._spec, reason, details, started_at=self._started_at)

        def keep() -> None:
            self._is_hung = True
            if not self._is_stopped and not self._is_cut_short:
                write_trial_file(self._folder, record)

        if not self._thread.give_up(End(record=record, is_hung=True), keep=keep):
            return  # It has just ended.
        time.sleep(LEAVE_S)
        leave()


def _failed(
    newest: TrialRecord | None, spec: SpecBase, reason: str, details: str, *, started_at: str
) -> TrialRecord:
    """Returns the record of a trial that has failed, with the evaluations that it had."""
    failed = {"status": Status.FAILED, "stop_reason": reason, "traceback": details}
    if newest is None:
        run = RunResult(seed=spec.seed, **failed)
        return make_record(spec, spec.recipe, run, started_at=started_at)
    run = newest.runs[-1].model_copy(update=failed)
    update = {"status": Status.FAILED, "runs": (run,), "finished_at": utc_now()}
    return newest.model_copy(update=update)


def _keep_to_share(spec: SpecBase, config: dict[str, Any]) -> None:
    """Refuses a device of another kind, and bounds the memory that the trial may take."""
    from tune_speed.runtime.device import limit_memory, resolve_device

    refuse_other_device(spec.allotment, config.get("device_type"))
    limit_memory(
        resolve_device(spec.allotment.device),
        gpu_fraction=spec.allotment.gpu_fraction,
        cpu_fraction=_memory_fraction(spec.allotment.memory_gib),
    )


def _memory_fraction(memory_gib: float | None) -> float | None:
    """Returns the share of the node's memory that is asked for, or None for no limit."""
    if memory_gib is None:
        return None
    return min(1.0, memory_gib * 2**30 / float(psutil.virtual_memory().total))


def _deadline(stop_after_s: float | None) -> float:
    return float("inf") if stop_after_s is None else time.monotonic() + stop_after_s
