"""Ray Tune runs the trials; every decision is the conductor's.

Ray's own experiment state is not used to resume: it keeps neither the trial scheduler's state nor
what a searcher was told last. The ledger has both. Tune's clock (`time_total_s`) counts imports and
waiting, so it is not looked at either.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from tune_speed.records import TrialRecord
from tune_speed.search.conductor import Conductor
from tune_speed.search.holdings import Holdings
from tune_speed.search.trial_process import TrialProcess


class _Adapter:
    """What searcher, trial scheduler and callback share: Ray's trial ids beside ours."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._holdings: Holdings | None = None
        self.trial_ids: dict[str, str] = {}
        """Our id of each Ray trial that is running."""

    def propose(self, ray_id: str) -> dict[str, Any] | None:
        spec = self.conductor.propose()
        if spec is None:
            return None
        self.trial_ids[ray_id] = spec.trial_id
        return {
            "spec": spec.model_dump_json(),
            "devices": spec.recipe.devices,
            "holdings": self._holdings_for(spec.recipe.devices),
            "resources": self.conductor.study.search.resources.model_dump_json(),
            "folder": str(self.conductor.ledger.folder),
            "stop_after_s": self.conductor.time_left_s(),
        }

    def _holdings_for(self, devices: int) -> str:
        """Returns the name of the list of what several devices hold, empty for one device.

        The list is an actor, hence a process: only trials that need it start it.
        """
        if devices == 1:
            return ""
        self._holdings = self._holdings or Holdings()
        return self._holdings.name

    def reported(self, ray_id: str, result: dict[str, Any]) -> bool:
        """Returns whether to stop the trial."""
        record = TrialRecord.model_validate_json(result["record"])
        reason = self.conductor.evaluated(record)
        if reason is not None:
            del self.trial_ids[ray_id]
        return reason is not None

    def ended(self, ray_id: str, result: dict[str, Any]) -> None:
        trial_id = self.trial_ids.pop(ray_id, None)
        if trial_id is None:
            return  # Stopped by us; its record is written.
        if result.get("interrupted"):
            self.conductor.interrupted(trial_id, reason="the search's time budget ended")
            return
        self.conductor.finished(TrialRecord.model_validate_json(result["record"]))

    def died(self, ray_trial: RayTrial) -> None:
        trial_id = self.trial_ids.pop(ray_trial.trial_id, None)
        if trial_id is None:
            return
        if self._holdings is not None:
            self._holdings.release(trial_id)
        details = _error_text(ray_trial)
        last_line = details.strip().splitlines()[-1]
        self.conductor.died(trial_id, reason=f"its process died: {last_line}", details=details)

    def experiment_ended(self) -> None:
        for trial_id in self.conductor.running:
            self.conductor.interrupted(trial_id, reason="the search was stopped")


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
    """Hands out the conductor's proposals."""

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        self._adapter = adapter

    def suggest(self, trial_id: str) -> Any:
        config = self._adapter.propose(trial_id)
        if config is not None:
            return config
        # A trial whose process dies is proposed again, so the search is over when nothing runs.
        is_over = not self._adapter.conductor.running
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
    """Stops a trial when the conductor says so."""

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        self._adapter = adapter

    def on_trial_result(self, tune_controller: Any, trial: RayTrial, result: dict[str, Any]) -> str:
        stop = self._adapter.reported(trial.trial_id, result)
        return str(TrialScheduler.STOP if stop else TrialScheduler.CONTINUE)


class _ConductorCallback(_Unpickled, tune.Callback):  # type: ignore[misc]
    """Passes results, deaths and the end on to the conductor."""

    def __init__(self, adapter: _Adapter, on_tick: Callable[[], None]) -> None:
        self._adapter = adapter
        self._on_tick = on_tick

    def on_step_end(self, iteration: int, trials: list[RayTrial], **info: Any) -> None:
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

    def on_trial_error(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any
    ) -> None:
        self._adapter.died(trial)

    def on_experiment_end(self, trials: list[RayTrial], **info: Any) -> None:
        self._adapter.experiment_ended()


def _keep_tune_here(folder: Path) -> None:
    """Lets Tune's driver run in this process although the cluster is far (ray://).

    Ray would run it on the head node, away from the ledger. All that keeps it from running here is
    that it asks for the session folder of a local node, where it stages files that we do not use.
    """
    from ray.train._internal import storage

    storage._get_ray_train_session_dir = lambda: str(folder / "session")


def run_search(conductor: Conductor, *, on_tick: Callable[[], None]) -> None:
    """Runs trials until the conductor proposes no more; Ctrl-C stops it and keeps what finished."""
    adapter = _Adapter(conductor)
    # Ray's state of the experiment: nothing in it that the ledger does not have.
    with tempfile.TemporaryDirectory(prefix="tune_speed-", ignore_cleanup_errors=True) as folder:
        if ray.util.client.ray.is_connected():
            _keep_tune_here(Path(folder))
        _run_tune(adapter, folder, on_tick)


def _run_tune(adapter: _Adapter, folder: str, on_tick: Callable[[], None]) -> None:
    tune.run(
        TrialProcess,
        name="ray",
        storage_path=folder,
        num_samples=10**9,  # The searcher says when it is over.
        search_alg=tune.search.ConcurrencyLimiter(
            _ConductorSearcher(adapter), max_concurrent=adapter.conductor.study.search.concurrent
        ),
        scheduler=_ConductorScheduler(adapter),
        callbacks=[_ConductorCallback(adapter, on_tick)],
        reuse_actors=True,
        verbose=0,
        raise_on_failed_trial=False,
        trial_dirname_creator=lambda trial: trial.trial_id,
        _remote=False,
    )
