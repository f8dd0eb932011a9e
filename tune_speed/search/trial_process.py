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

from tune_speed.search.settings import ResourceConfig
from tune_speed.search.trial_file import write_trial_file
from tune_speed.trial import TrialSpec

if TYPE_CHECKING:
    from tune_speed.objective import Trial


class TrialProcess(tune.Trainable):  # type: ignore[misc]
    """Runs trials one after the other in one process, so that torch is imported once.

    One `step` goes from one evaluation to the next; the training stands still in between, off the
    clock, until the driver has decided. Nothing runs when a trial ends, so that the next one cannot
    meet a thread of its predecessor.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Returns what Tune reserves for a trial.

        Several devices are reserved by Ray Train, see `ray_ddp`; Tune must ask for something.
        """
        if config["devices"] > 1:
            return tune.PlacementGroupFactory([{"memory": 1}])
        resources = ResourceConfig.model_validate_json(config["resources"])
        return tune.PlacementGroupFactory([resources.bundle()])

    def setup(self, config: dict[str, Any]) -> None:
        """Takes the first trial."""
        self._trial: Trial | None = None
        self._is_frozen = False
        self._begin(config)
        _freeze_modules()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Takes the next trial."""
        self.cleanup()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Trains up to the next evaluation; returns the trial's record so far, or at its end."""
        from tune_speed.train import Interrupted

        assert self._trial is not None
        try:
            record = next(self._trial)
        except StopIteration as end:
            write_trial_file(self._folder, end.value)
            return {"record": end.value.model_dump_json(), "done": True}
        except Interrupted:
            return {"interrupted": True, "done": True}
        return {"record": record.model_dump_json()}

    def cleanup(self) -> None:
        """Ends the trial where it stands and frees what it holds."""
        if self._trial is not None:
            self._trial.close()
            self._trial = None
        gc.collect()
        if not self._is_frozen:
            _freeze_modules()  # What the first trial imported, such as torch's compiler.
            self._is_frozen = True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Saves nothing: an interrupted trial starts anew from its ledger entry."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Loads nothing, see `save_checkpoint`."""

    def _begin(self, config: dict[str, Any]) -> None:
        spec = TrialSpec.model_validate_json(config["spec"])
        self._folder = Path(config["folder"])
        deadline = _deadline(config["stop_after_s"])
        self._trial = self._open(spec, config, interrupt=lambda: time.monotonic() > deadline)

    def _open(
        self, spec: TrialSpec, config: dict[str, Any], *, interrupt: Callable[[], bool]
    ) -> "Trial":
        from tune_speed.device import limit_memory, resolve_device
        from tune_speed.objective import run_trial

        if spec.recipe.devices > 1:
            from tune_speed.search.ray_ddp import run_on_cluster

            return run_on_cluster(
                spec, config["resources"], holdings=config["holdings"], interrupt=interrupt
            )
        limit_memory(
            resolve_device(spec.allotment.device),
            gpu_fraction=spec.allotment.gpu_fraction,
            cpu_fraction=_memory_fraction(spec.allotment.memory_gib),
        )
        return run_trial(spec, interrupt=interrupt)


def _freeze_modules() -> None:
    """Takes what is alive, mostly modules, out of later collections: 0.25 s each with torch."""
    gc.freeze()


def _memory_fraction(memory_gib: float | None) -> float | None:
    """Returns the share of the node's memory that is asked for, or None for no limit."""
    if memory_gib is None:
        return None
    return min(1.0, memory_gib * 2**30 / float(psutil.virtual_memory().total))


def _deadline(stop_after_s: float | None) -> float:
    return float("inf") if stop_after_s is None else time.monotonic() + stop_after_s
