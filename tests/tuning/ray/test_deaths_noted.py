from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RaySystemError
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from tune_speed.tuning.ray import tuner


def test_process_without_memory_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*asked: Any) -> None:
        raise RaySystemError("Unable to allocate internal buffer.")

    trial, died = Trial("process", stub=True), list[Trial]()
    asked: Any = SimpleNamespace(get_auto_filled_metrics=SimpleNamespace(remote=promise))
    trial.set_ray_actor(asked)
    monkeypatch.setattr(ray, "get", no_answer)
    adapter: Any = SimpleNamespace(died=died.append)
    callback = tuner._Callback(adapter, tuner._Scheduler(adapter), lambda: None)
    # Tune calls its own callbacks after those that it is given.
    for each in (callback, TrialProgressCallback()):
        each.on_trial_error(iteration=1, trials=[trial], trial=trial)
    assert died == [trial]


def promise(**options: Any) -> Any:
    return ray.ObjectRef.from_random()
