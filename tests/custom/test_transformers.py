"""Hugging Face's own Trainer with `SpeedCallback`, on a clock that only data and model wind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.custom.runs import Hand, run_on
from helpers.imports import refusal_without
from torch.utils.data import Dataset
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.custom import OwnRun
from tune_speed.custom.transformers import SpeedCallback

LOAD_S, STEP_S, VALIDATE_S, SAVE_S, SETUP_S = 0.25, 1.0, 100.0, 1000.0, 10_000.0
BATCHES = 4
EPOCH_S = BATCHES * (LOAD_S + STEP_S)

# Warnings of Hugging Face's own: of pinned memory without an accelerator, of what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows that take their time to load."""

    def __init__(self, hand: Hand, *, seconds: float) -> None:
        self.hand, self.seconds = hand, seconds

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.hand.passes(self.seconds)
        return {"x": torch.ones(2), "labels": torch.tensor(1.0)}


class Model(PreTrainedModel):
    """A linear layer that takes `STEP_S` a batch, `VALIDATE_S` of evaluation, `SAVE_S` to save."""

    config_class = PretrainedConfig

    def __init__(self, hand: Hand) -> None:
        super().__init__(PretrainedConfig())
        self.hand, self.layer = hand, torch.nn.Linear(2, 1)
        hand.passes(SETUP_S)
        self.post_init()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.hand.passes(STEP_S if self.training else VALIDATE_S)
        logits = self.layer(x).squeeze(1)
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        self.hand.passes(SAVE_S)
        super().save_pretrained(*args, **kwargs)


class Accuracies:
    """Gives one accuracy after the other, whatever was predicted."""

    def __init__(self, *accuracies: float) -> None:
        self.accuracies, self.evaluations = accuracies, 0

    def __call__(self, predicted: Any) -> dict[str, float]:
        self.evaluations += 1
        return {"accuracy": self.accuracies[(self.evaluations - 1) % len(self.accuracies)]}


def trainer_of(
    run: OwnRun,
    hand: Hand,
    folder: Path,
    *more: TrainerCallback,
    accuracies: Accuracies | None = None,
    metric: str = "eval_accuracy",
    eval_dataset: Any = None,
    **options: Any,
) -> Trainer:
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    return Trainer(
        model=Model(hand),
        args=TrainingArguments(**arguments),
        train_dataset=Rows(hand, seconds=LOAD_S),
        eval_dataset=eval_dataset or Rows(hand, seconds=0.0),
        compute_metrics=accuracies or Accuracies(0.5, 0.6, 0.7),
        callbacks=[SpeedCallback(run, metric=metric), *more],
    )


@pytest.fixture
def hand() -> Hand:
    return Hand(0.0)


def test_clock_counts_loading_and_steps_but_no_evaluation(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        trainer_of(run, hand, tmp_path).train()
        hand.passes(50.0)
        assert run.train_s == 2 * EPOCH_S
    assert [each.train_s for each in run.evaluations] == [EPOCH_S, 2 * EPOCH_S]
    assert [each.accuracy for each in run.evaluations] == [0.5, 0.6]
    assert [each.step for each in run.evaluations] == [4, 8]
    assert [each.epoch for each in run.evaluations] == [1, 2]
    assert all(each.loss is not None for each in run.evaluations)
    assert hand.now_s > SETUP_S + 2 * BATCHES * VALIDATE_S


@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_clock_stands_still_while_checkpoints_are_saved(
    hand: Hand, tmp_path: Path, strategy: str
) -> None:
    saving = {"eval_strategy": strategy, "save_strategy": strategy, "save_steps": 2}
    with run_on(hand) as run:
        trainer_of(run, hand, tmp_path, eval_steps=2, **saving).train()
        assert run.train_s == 2 * EPOCH_S
    saves = 2 if strategy == "epoch" else 4
    assert len(list(tmp_path.glob("checkpoint-*"))) == saves
    assert hand.now_s > saves * SAVE_S + SETUP_S


def test_save_without_an_evaluation_is_off_the_clock_too(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        trainer_of(run, hand, tmp_path, save_strategy="steps", save_steps=1).train()
        # The last save of an epoch comes before the evaluation, all others between two steps.
        assert run.train_s == 2 * EPOCH_S
    assert len(list(tmp_path.glob("checkpoint-*"))) == 8


def test_evaluation_at_the_start_is_off_the_clock(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        trainer_of(run, hand, tmp_path, eval_on_start=True).train()
    assert [each.train_s for each in run.evaluations] == [0.0, EPOCH_S, 2 * EPOCH_S]
    assert [each.step for each in run.evaluations] == [0, 4, 8]


def test_steps_are_optimizer_steps_with_gradient_accumulation(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand) as run:
        trainer_of(run, hand, tmp_path, gradient_accumulation_steps=3).train()
    # Four batches: one step of three, and one of the last.
    assert [each.step for each in run.evaluations] == [2, 4]
    assert [each.train_s for each in run.evaluations] == [EPOCH_S, 2 * EPOCH_S]
    assert run.counted_steps == 4


def test_anytime_training_ends_at_the_second_evaluation_that_holds(
    hand: Hand, tmp_path: Path
) -> None:
    accuracies = Accuracies(0.5, 0.7, 0.8, 0.9)
    with run_on(hand, value=0.6, mode="anytime") as run:
        options: dict[str, Any] = {"num_train_epochs": 9, "save_strategy": "epoch"}
        trainer = trainer_of(run, hand, tmp_path, accuracies=accuracies, **options)
        trainer.train()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.time_to_target_s) == (Status.REACHED, 2 * EPOCH_S)
    assert accuracies.evaluations == 3
    assert trainer.state.global_step == 12
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2


def test_training_ends_at_the_step_past_the_limit_without_an_evaluation(
    hand: Hand, tmp_path: Path
) -> None:
    accuracies = Accuracies(0.5)
    with run_on(hand, max_train_s=6.0) as run:
        trainer = trainer_of(run, hand, tmp_path, accuracies=accuracies, num_train_epochs=9)
        trainer.train()
    assert run.outcome is not None and run.outcome.status == Status.CAPPED
    # The fifth step ends at 6.25 s, or 6.5 s with the next batch, which is loaded ahead.
    assert trainer.state.global_step == run.counted_steps == 5
    assert accuracies.evaluations == 1


def test_interrupted_search_ends_the_training(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, interrupt=lambda: hand.now_s > SETUP_S + 600.0) as run:
        trainer = trainer_of(run, hand, tmp_path, num_train_epochs=9)
        trainer.train()
    assert run.is_interrupted
    assert trainer.state.global_step == 8


def test_fixed_length_is_judged_by_the_last_evaluation(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, value=0.6) as run:
        trainer_of(run, hand, tmp_path).train()
        run.returned()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.time_to_target_s) == (Status.REACHED, 2 * EPOCH_S)


def test_evaluation_after_the_training_is_that_of_its_end(hand: Hand, tmp_path: Path) -> None:
    with run_on(hand, value=0.6) as run:
        trainer = trainer_of(run, hand, tmp_path, eval_strategy="no")
        trainer.train()
        trainer.evaluate()
        trainer.evaluate()
    assert [(each.step, each.train_s) for each in run.evaluations] == [(8, 2 * EPOCH_S)]


def test_metric_of_one_of_several_data_sets_is_reported(hand: Hand, tmp_path: Path) -> None:
    sets = {name: Rows(hand, seconds=0.0) for name in ("a", "b", "c")}
    with run_on(hand) as run:
        options: dict[str, Any] = {"metric": "eval_b_accuracy", "eval_dataset": sets}
        trainer_of(run, hand, tmp_path, **options).train()
    assert [each.accuracy for each in run.evaluations] == [0.6, 0.6]
    # The first batch of the set after that one counts, as the callback's documentation says.
    assert [each.train_s for each in run.evaluations] == [EPOCH_S, 2 * EPOCH_S + VALIDATE_S]


def test_missing_metric_is_refused_with_those_that_were_evaluated(
    hand: Hand, tmp_path: Path
) -> None:
    with run_on(hand) as run, pytest.raises(ConfigError) as refused:
        trainer_of(run, hand, tmp_path, metric="eval_f1").train()
    assert "eval_accuracy" in str(refused.value) and "'eval_f1'" in str(refused.value)


def test_several_processes_are_refused(hand: Hand, tmp_path: Path) -> None:
    class Two(TrainingArguments):
        world_size = 2

    with run_on(hand) as run, pytest.raises(ConfigError, match="2 processes"):
        trainer = trainer_of(run, hand, tmp_path)
        args = Two(output_dir=str(tmp_path), use_cpu=True)
        SpeedCallback(run).on_train_begin(args, trainer.state, trainer.control)


def test_without_transformers_the_extra_is_named() -> None:
    said = refusal_without("transformers", module="tune_speed.custom.transformers")
    assert "pip install 'tune_speed[transformers]'" in said
