"""Compiled training; `test_train.py` runs these tests in a process of their own."""

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.training.checkpoints import (
    assert_same_run,
    disturb,
    known_models,
    make_case,
    open_checkpoints,
    run_on,
)
from helpers.training.tiny import Tiny, make_recipe, run

from tune_speed.components.speedups.initial_weights import Whitening
from tune_speed.training import build


def test_compiled_model_trains_like_the_plain_one() -> None:
    plain, compiled = (run(make_recipe(compile=c, epochs=3.0)) for c in (False, True))
    for ours, theirs in zip(plain.evaluations[1:], compiled.evaluations[1:], strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-4)
        assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-4)
    assert compiled.clocks.compile_s > compiled.clocks.train_s


def test_network_is_compiled_with_its_first_bias_trained_and_frozen() -> None:
    init = Whitening(frozen=True, bias_frac=0.5)
    plain, compiled = (
        run(make_recipe(compile=c, epochs=4.0, speedups={"init": init})) for c in (False, True)
    )
    for ours, theirs in zip(plain.evaluations[1:], compiled.evaluations[1:], strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-4)
        assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-4)


def test_compiled_run_goes_on_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known_models(monkeypatch, tiny=Tiny)
    model = Tiny(norm="batch", dropout=0.3)
    case = make_case(make_recipe(model=model, compile=True, epochs=3.0))
    whole = run_on(case)
    run_on(case, checkpoints=open_checkpoints(tmp_path / "c"), close_after=1)
    disturb()
    pieced = run_on(case, checkpoints=open_checkpoints(tmp_path / "c"))
    assert whole is not None and pieced is not None
    assert_same_run(whole, pieced)


def test_process_that_runs_many_compiled_trials_compiles_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    monkeypatch.setattr(build, "MOST_GRAPHS", 2)
    monkeypatch.setattr(build, "RECOMPILE_LIMIT", 4)
    for batch_size in range(2, 4 + build.RECOMPILE_LIMIT):
        run(make_recipe(compile=True, epochs=0.01, batch_size=batch_size))
