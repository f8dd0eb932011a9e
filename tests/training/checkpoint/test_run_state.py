from pathlib import Path
from typing import Any

import pytest
from checkpoints import (
    assert_same_run,
    disturb,
    interrupt_at,
    known_models,
    make_case,
    open_checkpoints,
    run_on,
)
from techniques_net import FIELDS, SETTINGS, TECHNIQUES, Everything, changes
from training import Tiny, make_recipe

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups.base import SpeedupConfig

RATES = {"yellowfin": 1.0, "adam": 0.01, "adamw": 0.01, "swats": 0.01, "muon": 0.02, "sgd": 0.1}
AVERAGED = {"speedups": {"averaging": {"ema": {"every": 3, "half_life": 0.3}}}}
CASES: dict[str, dict[str, Any]] = {
    **{f"optimizer {name}": {"optimizer": {name: {"lr": RATES[name]}}} for name in OPTIMIZERS},
    "optimizer swats, switched before the break": {
        "optimizer": {"swats": {"lr": 0.01, "switch_at_step": 2}}
    },
    "optimizer swats, switched after the break": {
        "optimizer": {"swats": {"lr": 0.01, "switch_at_step": 7}}
    },
    **{f"schedule {name}": {"lr_schedule": name} for name in SCHEDULES},
    "schedule reduce_on_plateau that drops": {
        "lr_schedule": {"reduce_on_plateau": {"patience": 0, "threshold": 0.5}}
    },
    **{f"technique {name}": changes(name) for name in TECHNIQUES},
    "ema, its step not that of the break": AVERAGED,
    **{f"setting {name}": fields for name, fields in SETTINGS.items()},
    "fp16 whose loss scale grows": {"precision": "fp16", "loss_scale_growth_steps": 2},
    "fp16 whose loss overflows": {"precision": "fp16", "init_loss_scale": 1e9},
    "ragged groups": {"batch_size": 3, "accumulation_steps": 3},
    "one step an epoch": {"batch_size": 8, "accumulation_steps": 3, "epochs": 6.0},
    "adam in half": {"precision": "half", "optimizer": {"adam": {"lr": 0.01, "eps": 1e-3}}},
    "contiguous": {"channels_last": False},
    "augmentation": {"augmentation": {"pad": 1, "flip": "alternating", "cutout": 2}},
    "repeated images": {
        "order": {"repeat_factor": FIELDS["repeat_factor"]},
        "augmentation": {"flip": "alternating"},
    },
    "curriculum and ema": {**changes("curriculum"), **AVERAGED},
    "selection and stochastic depth": {
        "speedups": {
            "selection": {"selective_backprop": {"start": 0.1, "keep": 0.5}},
            "depth": {"stochastic_depth": {}},
        }
    },
    "sizes and batches that grow": {
        "speedups": {
            "resolution": {"progressive_resizing": {"multiple": 2, "delay_frac": 0.2}},
            "batch_growth": {"batch_stages": {}},
        }
    },
    "loader dataloader": {"loader": {"dataloader": {}}},
    "loader dataloader, 2 workers": {"loader": {"dataloader": {"workers": 2}}},
    "loader dataloader, 1 worker that does not stay": {
        "loader": {"dataloader": {"workers": 1, "persistent_workers": False}}
    },
}
"""Every entry of every table of the recipe, and settings that meet one another."""


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    known_models(monkeypatch, tiny=Tiny, everything=Everything)


@pytest.mark.parametrize("name", CASES)
def test_run_in_three_pieces_is_the_whole_run(name: str, tmp_path: Path) -> None:
    place = tmp_path / "t0000.ckpt"
    recipe = make_recipe(model=Everything(), **{"epochs": 3.0, **CASES[name]})
    case, warm = make_case(recipe), set[str]()
    whole = run_on(case, warm=warm)
    assert whole is not None
    assert run_on(case, checkpoints=open_checkpoints(place), close_after=1, warm=warm) is None
    disturb()
    second = open_checkpoints(place)
    assert second.progress is not None and 0 < second.progress.steps < whole.result.steps
    assert run_on(case, checkpoints=second, interrupt=interrupt_at(2), warm=warm) is None
    disturb()
    third = open_checkpoints(place)
    assert third.progress is not None
    assert third.progress.steps == second_step(second.notes) + 2
    pieced = run_on(case, checkpoints=third, warm=warm)
    assert pieced is not None
    assert_same_run(whole, pieced)


def second_step(notes: list[str]) -> int:
    (note,) = notes
    return int(note.split()[3])


def test_batch_norm_and_dropout_go_on_where_they_were(tmp_path: Path) -> None:
    case = make_case(make_recipe(model=Tiny(norm="batch", dropout=0.4), epochs=4.0))
    whole = run_on(case)
    run_on(case, checkpoints=open_checkpoints(tmp_path / "c"), close_after=2)
    disturb()
    pieced = run_on(case, checkpoints=open_checkpoints(tmp_path / "c"))
    assert whole is not None and pieced is not None
    assert_same_run(whole, pieced)
    assert int(pieced.weights["norm.num_batches_tracked"]) == 12


def test_run_may_break_off_after_any_step(tmp_path: Path) -> None:
    recipe = make_recipe(model=Tiny(dropout=0.2), epochs=4.0, batch_size=4, accumulation_steps=2)
    case = make_case(recipe)
    whole = run_on(case)
    assert whole is not None and whole.result.steps == 12
    for step in range(1, 12):
        place = tmp_path / str(step)
        run_on(case, checkpoints=open_checkpoints(place), interrupt=interrupt_at(step))
        disturb()
        pieced = run_on(case, checkpoints=open_checkpoints(place))
        assert pieced is not None
        assert_same_run(whole, pieced)


def test_every_speedup_that_keeps_state_gives_it_back() -> None:
    from tune_speed.components.speedups import SPEEDUPS

    for name, kind in SPEEDUPS.items():
        has_state = kind.state is not SpeedupConfig.state
        assert has_state == (kind.restore is not SpeedupConfig.restore), name
