"""Energy of whole trainings, on a device that always takes 120 W by a made-up counter."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.custom.runs import make_own_spec
from helpers.training.tiny import Tiny, make_spec

from tune_speed.components.models import MODELS
from tune_speed.core.records import RunResult, Timing
from tune_speed.custom.run import OwnRun
from tune_speed.custom.trial import run_own_trial
from tune_speed.runtime import clock, sharing, step_timer
from tune_speed.training import warm_up
from tune_speed.training.checkpoint.checkpoints import identity_of
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.trial import Allotment

POWER_W = 120.0
ABOUT = pytest.approx(POWER_W, rel=0.25)


@pytest.fixture(autouse=True)
def _metered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(MODELS, "tiny", Tiny)
    monkeypatch.setattr(warm_up, "_idle_w", {})
    # Tests in this folder have short windows; other work on the machine disturbs some.
    monkeypatch.setattr(clock, "SHORTEST_METERED_S", 0.02)
    for module in (step_timer, sharing):
        monkeypatch.setattr(module, "MOST_DELAYED", 1.0)
    monkeypatch.setattr(
        warm_up, "energy_meter", lambda device: lambda: POWER_W * time.perf_counter()
    )
    yield


def run(*, max_cotenants: int = 0, **fields: Any) -> RunResult:
    allotment = Allotment(device="cpu", max_cotenants=max_cotenants)
    spec = make_spec(**fields).model_copy(update={"allotment": allotment})
    return finish(run_trial(spec), on_report=lambda record: None).runs[0]


def test_window_says_the_power_of_a_run_that_shares_its_device() -> None:
    result = run(max_cotenants=1, epochs=1.0)
    assert result.timing is Timing.ISOLATED
    assert [window.power_w for window in result.windows] == [ABOUT]
    assert result.power_w == ABOUT
    assert result.idle_power_w == ABOUT


def test_spans_of_training_say_the_power_of_a_run_that_is_alone() -> None:
    result = run(epochs=100.0)
    assert (result.timing, result.power_w) == (Timing.EXCLUSIVE, ABOUT)


def test_baseline_is_measured_once_in_a_process() -> None:
    began_s = time.perf_counter()
    assert run().idle_power_w == ABOUT
    first_s = time.perf_counter() - began_s
    warm_up._idle_w[next(iter(warm_up._idle_w))] = 7.0
    assert first_s > 0.5 and run().idle_power_w == 7.0


def test_prices_of_the_study_are_recorded_and_a_checkpoint_is_of_no_price() -> None:
    free, spec = make_spec(), make_spec()
    allotment = spec.allotment.model_copy(update={"price_per_hour": {"H200": 3.5}})
    spec = spec.model_copy(update={"allotment": allotment})
    record = finish(run_trial(spec), on_report=lambda record: None)
    assert record.prices == {"H200": 3.5}
    cpu = torch.device("cpu")
    assert identity_of(spec, cpu) == identity_of(free, cpu)


def test_training_function_has_its_power_too() -> None:
    def train(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            time.sleep(0.4)
            run.step()
        run.evaluated(step=1, metric=0.95, epoch=1.0, samples=1)

    result = run_own_trial(make_own_spec(), train, on_report=lambda record: None).runs[0]
    assert (result.timing, result.power_w) == (Timing.EXCLUSIVE, ABOUT)
    assert result.idle_power_w == ABOUT
