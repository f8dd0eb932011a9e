"""Lightning's own trainer with `SpeedCallback`, on a clock that only the data and modules wind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.custom.runs import Hand, run_on
from helpers.imports import imported, refusal_without
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, Sampler

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.custom import OwnRun, StopTraining
from tune_speed.custom.lightning import SpeedCallback

LOAD_S, STEP_S, START_S, VALIDATE_S, SAVE_S, SETUP_S = 0.25, 1.0, 7.0, 100.0, 1000.0, 10_000.0
BATCHES = 4

# Lightning's advice on loaders, and torch's of its own parts that Lightning uses.
pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset[torch.Tensor]):
    """Rows that take their time to load."""

    def __init__(self, hand: Hand, *, seconds: float) -> None:
        self.hand, self.seconds = hand, seconds

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        self.hand.passes(self.seconds)
        return torch.ones(2)


class SlowToStart(Sampler[int]):
    """An order whose iterator takes its time, as worker processes do."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[int]:
        self.hand.passes(START_S)
        return iter(range(BATCHES))


class Module(pl.LightningModule):
    """A linear layer that takes `STEP_S` a batch and logs one accuracy after the other."""

    def __init__(self, hand: Hand, accuracies: list[float]) -> None:
        super().__init__()
        self.hand, self.accuracies, self.validations = hand, accuracies, 0
        self.layer = torch.nn.Linear(2, 1)
        hand.passes(SETUP_S)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.hand.passes(STEP_S)
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.hand.passes(VALIDATE_S)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_acc", self.accuracies[self.validations % len(self.accuracies)])
            self.validations += 1

    def on_validation_end(self) -> None:
        self.hand.passes(VALIDATE_S)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.hand.passes(SAVE_S)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_of(
    run: OwnRun, folder: Path, *more: Callback, metric: str = "val_acc", **options: Any
) -> pl.Trainer:
    return pl.Trainer(
        **{"max_epochs": 2, **options},
        callbacks=[*more, SpeedCallback(run, metric=metric)],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in more),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def fit(trainer: pl.Trainer, hand: Hand, accuracies: tuple[float, ...] = (0.5, 0.6, 0.7)) -> Module:
    module = Module(hand, list(accuracies))
    train = DataLoader(Rows(hand, seconds=LOAD_S))
    trainer.fit(module, train, DataLoader(Rows(hand, seconds=0.0), sampler=SlowToStart(hand)))
    return module


@pytest.fixture
def hand() -> Hand:
    return Hand(0.0)


def test_clock_counts_loading_and_steps_but_no_validation_nor_sanity_check(
    hand: Hand, tmp_path: Path
) -> None:
    with run_on(hand) as run:
        module = fit(trainer_of(run, tmp_path), hand)
    assert module.validations == 2
    epoch_s = BATCHES * (LOAD_S + STEP_S)
    assert [each.train_s for each in run.evaluations] == [epoch_s, 2 * epoch_s]
    assert [each.accuracy for each in run.evaluations] == pytest.approx([0.5, 0.6])
    assert [each.step for each in run.evaluations] == [4, 8]
    assert [each.epoch for each in run.evaluations] == [1, 2]
    assert hand.now_s > SETUP_S + 2 * BATCHES * VALIDATE_S


def test_clock_stands_still_while_checkpoints_are_saved(hand: Hand, tmp_path: Path) -> None:
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=-1)
    after_validation = ModelCheckpoint(dirpath=tmp_path / "val", monitor="val_acc")
    with run_on(hand) as run:
        fit(trainer_of(run, tmp_path, saving, after_validation), hand)
        assert run.train_s == 2 * BATCHES * (LOAD_S + STEP_S)
    assert len(list(tmp_path.glob("*.ckpt"))) == 8
    assert hand.now_s > 8 * SAVE_S


def test_validation_within_an_epoch_is_off_the_clock_too(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        fit(trainer_of(run, tmp_path, max_epochs=1, val_check_interval=2), hand)
    assert [each.step for each in run.evaluations] == [2, 4]
    assert [each.train_s for each in run.evaluations] == [2.5, 5.0]
    assert [each.epoch for each in run.evaluations] == [0.5, 1.0]


def test_steps_are_optimizer_steps_with_gradient_accumulation(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        trainer = trainer_of(run, tmp_path, max_epochs=3, accumulate_grad_batches=3)
        fit(trainer, hand)
    # Four batches: one step of three, and one of the last.
    assert [each.step for each in run.evaluations] == [2, 4, 6]
    assert run.counted_steps == 6


def test_validation_without_a_new_step_is_not_reported_twice(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        options: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 1}
        module = fit(trainer_of(run, tmp_path, max_epochs=1, **options), hand)
    assert module.validations == 4
    assert [each.step for each in run.evaluations] == [0, 1, 2]


def test_anytime_fit_ends_at_the_second_validation_that_holds(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, value=0.6, mode="anytime") as run:
        trainer = trainer_of(run, tmp_path, max_epochs=9)
        module = fit(trainer, hand, (0.5, 0.7, 0.8, 0.9))
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.time_to_target_s) == (Status.REACHED, 10.0)
    assert module.validations == 3
    assert trainer.global_step == 12
    assert trainer.state.finished


def test_fit_ends_at_the_step_past_the_limit_without_a_validation(
    hand: Hand, tmp_path: Path
) -> None:
    with run_on(hand, max_train_s=6.0) as run:
        trainer = trainer_of(run, tmp_path, max_epochs=9)
        module = fit(trainer, hand)
    assert run.outcome is not None and run.outcome.status == Status.CAPPED
    # The first step that ends past 6 s is the fifth, at 6.25 s.
    assert trainer.global_step == run.counted_steps == 5
    assert module.validations == 1


def test_fit_that_may_not_stop_early_is_left_by_stop_training(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, max_train_s=1.0) as run:
        trainer = trainer_of(run, tmp_path, max_epochs=9, min_epochs=5)
        with pytest.raises(StopTraining, match="max_train_s"):
            fit(trainer, hand)
    assert trainer.global_step == 1


def test_interrupted_search_ends_the_fit(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, interrupt=lambda: hand.now_s > SETUP_S + 1000.0) as run:
        trainer = trainer_of(run, tmp_path, max_epochs=9)
        fit(trainer, hand)
    assert run.is_interrupted
    assert trainer.global_step < 9 * BATCHES


def test_fixed_length_is_judged_by_the_last_validation(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, value=0.6) as run:
        fit(trainer_of(run, tmp_path), hand)
        run.returned()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.time_to_target_s) == (Status.REACHED, 10.0)


def test_validation_after_the_fit_is_that_of_its_end(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, value=0.6) as run:
        trainer = trainer_of(run, tmp_path, max_steps=6, max_epochs=-1)
        module = fit(trainer, hand)
        trainer.validate(module, DataLoader(Rows(hand, seconds=0.0)), verbose=False)
    assert [each.step for each in run.evaluations] == [4, 6]
    assert [each.train_s for each in run.evaluations] == [5.0, 7.5]
    assert [each.epoch for each in run.evaluations] == [1, 1.5]


def test_missing_metric_is_refused_with_those_that_were_logged(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run, pytest.raises(ConfigError) as refused:
        fit(trainer_of(run, tmp_path, metric="accuracy"), hand)
    assert "val_acc" in str(refused.value) and "'accuracy'" in str(refused.value)


def test_fit_without_validation_is_refused(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run, pytest.raises(ConfigError, match="validation data"):
        trainer = trainer_of(run, tmp_path)
        trainer.fit(Module(hand, [0.5]), DataLoader(Rows(hand, seconds=LOAD_S)))


def test_several_processes_are_refused(hand: Hand, tmp_path: Path) -> None:
    class Two(pl.Trainer):
        world_size = 2

    with run_on(hand) as run, pytest.raises(ConfigError, match="2 processes"):
        trainer = Two(accelerator="cpu", logger=False, default_root_dir=tmp_path)
        SpeedCallback(run).setup(trainer, Module(hand, []), "fit")


def test_error_in_the_module_stops_the_clock_and_frees_the_trainer(
    hand: Hand, tmp_path: Path
) -> None:
    class Broken(Module):
        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            if not self.trainer.sanity_checking:
                raise RuntimeError("broken")

    with run_on(hand) as run:
        trainer = trainer_of(run, tmp_path)
        with pytest.raises(RuntimeError, match="broken"):
            loader = DataLoader(Rows(hand, seconds=LOAD_S))
            trainer.fit(Broken(hand, [0.5]), loader, loader)
        before_s = run.train_s
        hand.passes(50.0)
        assert run.train_s == before_s
    assert "save_checkpoint" not in vars(trainer)
    assert "run" not in vars(trainer.fit_loop.epoch_loop.val_loop)


@pytest.mark.slow
def test_callback_is_one_of_pytorch_lightning_where_that_is_used() -> None:
    code = (
        "import pytorch_lightning as pl; from tune_speed.custom.lightning import SpeedCallback\n"
        "assert issubclass(SpeedCallback, pl.Callback)"
    )
    assert imported(code, "lightning.pytorch") == set()


def test_without_lightning_the_extra_is_named() -> None:
    libraries = ("lightning.pytorch", "pytorch_lightning")
    said = refusal_without(*libraries, module="tune_speed.custom.lightning")
    assert "pip install 'tune_speed[lightning]'" in said


def test_importing_tune_speed_imports_neither_lightning_nor_transformers() -> None:
    heavy = ("lightning", "pytorch_lightning", "transformers", "accelerate")
    assert imported("import tune_speed, tune_speed.custom", *heavy) == set()
