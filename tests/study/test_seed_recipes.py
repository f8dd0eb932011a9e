"""The recipes of the source documents, as the shipped spaces try them first."""

import pytest

from tune_speed.study.file import load_study
from tune_speed.study.space import read_point
from tune_speed.training.recipe import Recipe

NUM_TRAIN = 45_000


def first_recipes(name: str) -> list[Recipe]:
    study = load_study(name, check_data=False)
    points = [read_point(study.space, point) for point in study.search.points_to_evaluate]
    return [Recipe.model_validate(study.space.build(point)) for point in points]


@pytest.mark.parametrize(
    ("name", "samples_per_step", "num_steps"),
    [
        ("seed_resnet50", [128, 256], [352 * 30, 176 * 30]),
        ("seed_vit", [70, 1050], [643 * 10, 43 * 10]),
        ("seed_efficientnet", [192, 200], [235 * 20, 225 * 20]),
        ("seed_resnet20", [128, 1024], [352 * 200, 44 * 200]),
    ],
)
def test_first_points_have_the_batches_and_steps_of_the_study(name, samples_per_step, num_steps):
    recipes = first_recipes(name)
    assert [recipe.samples_per_step for recipe in recipes] == samples_per_step
    assert [recipe.steps(num_train=NUM_TRAIN) for recipe in recipes] == num_steps


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("seed_resnet50", [1e-3, 1e-3]),
        ("seed_vit", [2e-5, 2e-5]),
        ("seed_efficientnet", [0.01, 0.01]),
        ("seed_resnet20", [0.1, 0.8]),
    ],
)
def test_first_points_have_the_rates_of_the_study(name, rates):
    recipes = first_recipes(name)
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
