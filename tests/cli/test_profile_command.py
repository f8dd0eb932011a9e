"""`tune-speed profile` as a user runs it, on digits."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command import Done, start
from helpers.experiments.ablations import RECIPE, write_recipe

from tune_speed.experiments.profiling.result import PHASES, ProfileResult

pytestmark = pytest.mark.slow


@pytest.fixture
def refused(call: Callable[..., Done], tmp_path: Path) -> Any:
    """Runs a command that is to be refused; returns its exit code and message."""
    return lambda *arguments: call(*arguments, folder=tmp_path)[::2]


def test_profile_says_where_the_time_goes(tmp_path: Path, call: Callable[..., Done]) -> None:
    write_recipe(tmp_path)
    options = ("--steps", "4", "--set", "loader.workers=auto", "--trace", "trace.json", "--json")
    done = call("profile", "tiny.yaml", *options, folder=tmp_path)
    assert done.code == 0, done.err
    found, times = done.json, done.json["times"]
    assert ProfileResult.model_validate(found).model_dump(mode="json") == found
    assert times["profiled_step_ms"] == pytest.approx(sum(times[f"{phase}_ms"] for phase in PHASES))
    assert min(times[f"{name}_ms"] for name in ("forward", "backward", "optimizer")) > 0
    assert (times["forward_backward_ms"], times["num_steps"]) == (0.0, 4)
    assert (found["samples_per_step"], found["precision"]) == (50, "fp32")
    assert found["resolved"].keys() == {"loader.dataloader.workers", "cuda_graph"}
    # The CIFAR ResNet-20 on 8x8 pixels: a sixteenth of 40.8 million multiply-adds, three times.
    assert found["bounds"]["gflop"] == pytest.approx(50 * 3 * 2 * 40.8e6 / 16 / 1e9, rel=0.1)
    achieved = found["bounds"]["gflop"] / times["step_ms"]
    assert found["bounds"]["achieved_tflop_per_s"] == pytest.approx(achieved)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "wrote trace.json" in done.err and "warming up" in done.err


def test_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    process = start("profile", "tiny.yaml", "--steps", "1000", folder=tmp_path)
    assert process.stderr is not None
    assert any("warming up" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "stopped" in err and "Traceback" not in err


def test_unknown_recipe_is_refused(refused: Any) -> None:
    code, said = refused("profile", "no_such.yaml")
    assert code == 2 and "no_such.yaml" in said


def test_device_that_is_not_there_is_refused(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    path = str(write_recipe(tmp_path))
    assert refused("profile", path, "--device", "cuda")[0] == 2
    code, said = refused("profile", path, "--device", "abacus")
    assert code == 2 and "run.device" in said


def test_searched_value_is_refused(refused: Any, tmp_path: Path) -> None:
    text = RECIPE.replace("batch_size: 50", "batch_size: {choices: [25, 50]}")
    code, said = refused("profile", str(write_recipe(tmp_path, text)))
    assert code == 2 and "batch_size" in said


def test_step_that_does_not_fit_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tune_speed.core.errors import ConfigError
    from tune_speed.experiments.profiling import profile
    from tune_speed.experiments.rerun import load_rerun

    def run_out(*_: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(profile, "_profile", run_out)
    file = load_rerun(str(write_recipe(tmp_path)), overrides=[], check_data=True)
    with pytest.raises(ConfigError, match=r"recipe.batch_size: must fit in memory, but got 50"):
        profile.profile_recipe(
            file, steps=1, download=False, on_progress=lambda *_: None, on_line=print
        )
