"""Recipes of the source documents and of the speed-run, as the shipped spaces try them first."""

import pytest
from helpers.training.tiny import CPU, to_end

from tune_speed.components.optim.optimizers import Muon, Sgd
from tune_speed.data.cache import prepare
from tune_speed.data.split import make_splits
from tune_speed.study.file import load_study
from tune_speed.study.space import read_point
from tune_speed.training.autotune.step_options import provisional
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS

NUM_TRAIN = 45_000


def first_recipes(name: str) -> list[Recipe]:
    study = load_study(name, check_data=False)
    points = [read_point(study.space, point) for point in study.search.points_to_evaluate]
    return [Recipe.model_validate(study.space.build(point)) for point in points]


@pytest.mark.parametrize(
    ("name", "samples_per_step", "num_steps", "rates"),
    [
        ("seed_resnet50", [128, 256], [352 * 30, 176 * 30], [1e-3, 1e-3]),
        ("cifar10_finetune_vit", [70, 1050], [643 * 10, 43 * 10], [2e-5, 2e-5]),
        ("cifar10_finetune_efficientnet", [192, 200], [235 * 20, 225 * 20], [0.01, 0.01]),
        ("seed_resnet20", [128, 1024], [352 * 200, 44 * 200], [0.1, 0.8]),
    ],
)
def test_first_points_have_batches_steps_and_rates_of_the_study(
    name, samples_per_step, num_steps, rates
):
    recipes = first_recipes(name)
    assert [recipe.samples_per_step for recipe in recipes] == samples_per_step
    assert [recipe.steps(num_train=NUM_TRAIN) for recipe in recipes] == num_steps
    assert [r.optimizer.step_lr(r.samples_per_step) for r in recipes] == pytest.approx(rates)


def test_nickas_choice_of_a_rate_tries_three_rates_for_one_epoch_each():
    space = load_study("seed_sgd_rate", check_data=False).space
    tried = [Recipe.model_validate(space.build(point)) for point in space.corners(limit=9)]
    assert {recipe.optimizer.lr for recipe in tried} == {0.001, 0.01, 0.1}
    assert {recipe.steps(num_train=NUM_TRAIN) for recipe in tried} == {352}


def test_only_the_arm_without_techniques_clips_by_value():
    assert [recipe.clip_value for recipe in first_recipes("seed_resnet50")] == [0.01, None]


def test_resnet20_drops_at_epochs_80_and_160():
    baseline, scaled = first_recipes("seed_resnet20")
    for recipe in (baseline, scaled):
        num_steps = recipe.steps(num_train=NUM_TRAIN)
        per_epoch = num_steps // 200
        rates = [
            recipe.lr_schedule.factors((k + 1) / num_steps, step_frac=1 / num_steps).lr
            for k in (80 * per_epoch - 1, 80 * per_epoch, 160 * per_epoch - 1, 160 * per_epoch)
        ]
        assert rates == pytest.approx([1.0, 0.1, 0.1, 0.01])


def test_resnet20_takes_the_milestones_of_the_paper_from_the_command_line():
    milestones = "recipe.lr_schedule.multi_step.milestones=[0.5,0.75]"
    study = load_study("seed_resnet20", overrides=[milestones], check_data=False)
    recipe = Recipe.model_validate(study.space.build(next(study.space.corners())))
    assert recipe.lr_schedule.milestones == (0.5, 0.75)


NUM_SPEEDRUN = 50_000
"""The records train on all images that are not of the test part, and so do certified runs."""


def test_certified_runs_train_on_the_images_of_the_records() -> None:
    workload = load_study("cifar10_speedrun", check_data=False).workload
    assert workload.certify_on == "train+validation"
    assert workload.split.train_samples is workload.split.validation_samples is None


def rates_of(recipe: Recipe) -> list[float]:
    num_steps = recipe.steps(num_train=NUM_SPEEDRUN)
    return [
        recipe.lr_schedule.factors((step + 1) / num_steps, step_frac=1 / num_steps).lr
        for step in range(num_steps)
    ]


def test_muon_has_the_records_rates_for_the_mean_loss() -> None:
    """The record's loss is a sum over 2,000 images, and its logits are scaled by 1/256."""
    recipe, _ = first_recipes("cifar10_speedrun")
    assert isinstance(recipe.optimizer, Muon)
    scale = recipe.model.model_dump()["logit_scale"]
    assert recipe.optimizer.lr == 0.24
    assert recipe.optimizer.bias_lr == pytest.approx(0.053 * 2000)
    # Weights v = scale * w of the unscaled logits move by scale² times the rate.
    head_rate = 0.67 * 2000 * (1 / 256) ** 2
    assert (recipe.optimizer.sgd_lr or 0) * scale**2 == pytest.approx(head_rate, rel=0.03)
    # Coupled decay 2e-6 * 2000 a step, which momentum 0.85 repeats, against a decoupled one.
    decay = recipe.optimizer.weight_decay * (recipe.optimizer.sgd_lr or 0)
    assert decay == pytest.approx(2e-6 * 2000 / (1 - 0.85), rel=0.03)


def test_muons_run_is_eight_epochs_on_a_line_to_zero() -> None:
    recipe, _ = first_recipes("cifar10_speedrun")
    assert rates_of(recipe) == pytest.approx([1 - step / 200 for step in range(200)])


def test_sgd_has_the_records_rates_for_the_mean_loss() -> None:
    """The record's 11.5 per 1024 images is divided by 1 + 1 / (1 - momentum) there."""
    _, recipe = first_recipes("cifar10_speedrun")
    assert isinstance(recipe.optimizer, Sgd) and recipe.optimizer.lr_per_examples == 1024
    assert recipe.optimizer.lr == pytest.approx(11.5 / (1 + 1 / (1 - 0.85)))
    assert recipe.optimizer.bias_lr == 64 * recipe.optimizer.lr
    assert recipe.optimizer.weight_decay == pytest.approx(0.0153 / 11.5, rel=0.01)


def test_sgds_run_is_a_triangle() -> None:
    _, recipe = first_recipes("cifar10_speedrun")
    rates = rates_of(recipe)
    peak = 0.23 * len(rates)
    assert len(rates) == round(9.9 * (NUM_SPEEDRUN // 1024)) == 475
    assert rates[0] == pytest.approx(0.2)
    assert rates[100] == pytest.approx(0.2 + 0.8 * 100 / peak)
    assert rates[300] == pytest.approx(1 - 0.93 * (300 - peak) / (475 - peak))


@pytest.mark.parametrize(("number", "accuracy"), [(0, 0.92), (1, 0.5)])
def test_digits_are_learned_in_five_epochs(number: int, accuracy: float) -> None:
    """SGD's rate is per 1024 images: 90 steps of 64 are few for it. Chance is 0.1."""
    recipe = first_recipes("cifar10_speedrun")[number].model_dump(mode="json")
    widths = {"width1": 16, "width2": 32, "width3": 32}
    changes = {"model": {"speednet": widths}, "epochs": 5.0, "batch_size": 64, "compile": False}
    augmentation = {"pad": 1, "flip": "none"}  # Mirror images of digits are none.
    changes |= {"augmentation": augmentation, "speedups": {"init": recipe["speedups"]["init"]}}
    workload = WORKLOADS["digits"]
    splits = make_splits(prepare(workload.dataset), workload.split)
    small = provisional(Recipe.model_validate({**recipe, **changes}))
    result = to_end(train(Job(workload, small, splits, seed=0, device=CPU)))
    assert result.final is not None
    assert result.final.accuracy > accuracy
