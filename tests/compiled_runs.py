"""Compiled training; `test_train.py` runs these tests in a process of their own."""

from functools import partial

import pytest
import torch
from test_train import make_recipe, run


def test_compiled_model_trains_like_the_plain_one() -> None:
    plain, compiled = (run(make_recipe(compile=c, epochs=3.0)) for c in (False, True))
    for ours, theirs in zip(plain.evaluations[1:], compiled.evaluations[1:], strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-4)
        assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-4)
    assert compiled.clocks.compile_s > compiled.clocks.train_s


def test_process_that_runs_many_compiled_trials_compiles_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    limit = torch._dynamo.config.recompile_limit
    for batch_size in range(2, 4 + limit):
        run(make_recipe(compile=True, epochs=0.01, batch_size=batch_size))
