import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from helpers.making import make_record, make_run
from helpers.tuning.policies import count_calls
from sklearn.linear_model import Ridge

from tune_speed.core.records import Status
from tune_speed.study.file import load_study, shipped_files
from tune_speed.study.space import SearchSpace
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.driver.cost_model import (
    FACTOR_SD,
    GROWTH,
    GROWTH_SD,
    LEVEL_SD,
    OPTIMISM,
    REST_SD,
    CostModel,
    Key,
    StepTimes,
)

NUM_TRAIN = 1000
FIXED: dict[str, Any] = {
    "model": {"choices": ["resnet20", "timm"]},
    "optimizer": {"choices": {"sgd": {"lr": {"low": 0.1, "high": 1.0}}, "adamw": {"lr": 0.1}}},
    "epochs": {"low": 1, "high": 8},
    "batch_size": {"choices": [10, 20, 100]},
    "clip_norm": {"choices": [None, 1.0, 2.0]},
    "augmentation": {"pad": {"choices": [0, 2]}},
}
PARAMS: dict[str, Any] = {
    "model": "resnet20",
    "optimizer": "sgd",
    "optimizer.sgd.lr": 0.1,
    "epochs": 2,
    "batch_size": 10,
    "clip_norm": None,
    "augmentation.pad": 0,
}


def make_costs() -> CostModel:
    return CostModel(SearchSpace.from_tree(FIXED), num_train=NUM_TRAIN)


def seconds(costs: CostModel, **changes: Any) -> float:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    cost = costs({**PARAMS, **named})
    assert cost is not None
    return cost.train_s


def random_params(space: SearchSpace, chooser: random.Random) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for parameter in space.parameters:
        if not parameter.is_active(params):
            continue
        if parameter.choices:
            params[parameter.name] = chooser.choice(parameter.choices)
            continue
        assert parameter.low is not None and parameter.high is not None
        value = chooser.uniform(parameter.low, parameter.high)
        params[parameter.name] = parameter.low if parameter.step else value
        if parameter.kind == "int":
            params[parameter.name] = round(value)
    return params


@pytest.mark.parametrize("name", sorted(shipped_files()))
@pytest.mark.parametrize("num_train", [1, 1150, 5000, 45_000])
def test_steps_are_those_of_the_recipe(name: str, num_train: int) -> None:
    space, chooser = load_study(name, check_data=False).space, random.Random(0)
    costs = CostModel(space, num_train=num_train)
    for _ in range(100):
        params = random_params(space, chooser)
        recipe = Recipe.model_validate(space.build(params))
        assert costs.steps(params) == recipe.steps(num_train=num_train)
        assert costs.samples_per_step(params) == recipe.samples_per_step


def test_steps_of_a_given_effective_batch_size_are_those_of_the_recipe() -> None:
    tree = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": 0.1}},
        "epochs": 1.5,
        "accumulation_steps": "auto",
        "effective_batch_size": {"low": 32, "high": 96, "step": 32},
    }
    space = SearchSpace.from_tree(tree)
    costs = CostModel(space, num_train=NUM_TRAIN)
    for params in space.points():
        recipe = Recipe.model_validate(space.build(params))
        assert costs.steps(params) == recipe.steps(num_train=NUM_TRAIN)


def test_nothing_is_known_before_a_trial_finished() -> None:
    assert make_costs()(PARAMS) is None


def test_known_key_costs_steps_times_step_time_whatever_is_learned() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    cost = costs({**PARAMS, "epochs": 4, "optimizer.sgd.lr": 0.9})
    assert cost is not None
    assert cost.num_steps == 400
    assert cost.train_s == pytest.approx(4.0)


def test_shortest_step_time_holds() -> None:
    costs = make_costs()
    for step_s in (0.03, 0.01, 0.02):
        costs.learn(PARAMS, step_s=step_s)
    assert seconds(costs) == pytest.approx(200 * 0.01)


def test_records_are_learned_from_and_those_without_a_step_are_not() -> None:
    costs = make_costs()
    run = make_run(Status.MISSED)
    no_step = run.model_copy(update={"step_time_ms": None})
    costs.finished(make_record(params=PARAMS, runs=(no_step,)))
    assert costs(PARAMS) is None
    costs.finished(make_record(params=PARAMS, runs=(run,)))
    assert seconds(costs) == pytest.approx(200 * 0.1)


def test_clipping_matters_but_not_its_norm() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    costs.learn({**PARAMS, "clip_norm": 1.0}, step_s=0.02)
    assert seconds(costs, clip_norm=2.0) == pytest.approx(200 * 0.02)


def test_other_model_says_nothing() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    assert costs({**PARAMS, "model": "timm"}) is None


def test_unknown_key_is_estimated_from_the_nearest_one_and_low() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    others = {name: value for name, value in PARAMS.items() if name != "optimizer.sgd.lr"}
    costs.learn({**others, "optimizer": "adamw", "augmentation.pad": 2}, step_s=9.0)
    assert seconds(costs, clip_norm=1.0) == pytest.approx(200 * 0.01 * OPTIMISM)


def test_estimate_never_exceeds_the_truth_where_step_time_grows_less_than_the_batch() -> None:
    """Between the two extremes: proportional to the batch, and bound by the launch of kernels."""
    for share_of_samples in (0.0, 0.3, 1.0):
        for known in (10, 20, 100):
            costs = make_costs()

            def truth(batch_size: int, share: float = share_of_samples) -> float:
                return 0.01 * (1 - share + share * batch_size / 20)

            costs.learn({**PARAMS, "batch_size": known}, step_s=truth(known))
            for other in (10, 20, 100):
                steps = costs.steps({**PARAMS, "batch_size": other})
                assert seconds(costs, batch_size=other) <= steps * truth(other) * (1 + 1e-9)


def test_estimate_ends_when_the_key_was_seen() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    before = seconds(costs, clip_norm=1.0)
    costs.learn({**PARAMS, "clip_norm": 1.0}, step_s=0.04)
    assert before == pytest.approx(1.0)
    assert seconds(costs, clip_norm=1.0) == pytest.approx(8.0)


def test_guess_of_an_unknown_key_is_no_less_than_its_bound_and_nearer_the_truth() -> None:
    costs = make_costs()
    for batch_size, pad in ((10, 0), (20, 0), (100, 0), (20, 2)):
        slower = 1.3 if pad else 1.0
        params = {**PARAMS, "batch_size": batch_size, "augmentation.pad": pad}
        costs.learn(params, step_s=0.001 * batch_size * slower)
    new = {**PARAMS, "batch_size": 100, "augmentation.pad": 2}
    cost, true_s = costs(new), 2 * 10 * 0.13
    assert cost is not None and cost.guess_s is not None
    assert cost.train_s < true_s
    assert cost.likely_s == cost.guess_s == pytest.approx(true_s, rel=0.15)


def test_known_key_needs_no_guess() -> None:
    costs = make_costs()
    costs.learn(PARAMS, step_s=0.01)
    cost = costs(PARAMS)
    assert cost is not None
    assert cost.guess_s is None
    assert cost.likely_s == cost.train_s


def test_question_takes_few_calls_however_much_was_learned() -> None:
    space, chooser = load_study("cifar10_resnet20", check_data=False).space, random.Random(0)
    asked = [random_params(space, chooser) for _ in range(300)]

    def calls(num_learned: int) -> int:
        costs = CostModel(space, num_train=45_000)
        for params in asked[:num_learned]:
            costs.learn(params, step_s=0.01)
        costs(asked[0])  # What is fitted once is no part of a question.
        return count_calls(lambda: [costs(params) for params in asked])

    assert calls(200) < calls(20) < 50 * len(asked)


def test_what_comes_before_the_first_step_is_priced_as_it_was_seen() -> None:
    tree = {
        **FIXED,
        "speedups": {
            "init": {"choices": {"off": {}, "pretrain_subset": {"epochs": {"low": 1, "high": 9}}}}
        },
    }
    costs = CostModel(SearchSpace.from_tree(tree), num_train=NUM_TRAIN)
    pretrained = {
        **PARAMS,
        "speedups.init": "pretrain_subset",
        "speedups.init.pretrain_subset.epochs": 3,
    }
    for params, init_s in (({**PARAMS, "speedups.init": "off"}, 0.0), (pretrained, 7.0)):
        run = make_run(Status.MISSED).model_copy(update={"step_time_ms": 10.0, "init_s": init_s})
        costs.finished(make_record(params=params, runs=(run,)))
    steps_s = 200 * 0.01
    plain, seen = costs({**PARAMS, "speedups.init": "off"}), costs(pretrained)
    assert plain is not None and plain.train_s == pytest.approx(steps_s)
    assert seen is not None and seen.train_s == pytest.approx(7.0 + steps_s)
    # Another rate or length leaves it as long, another batch need not.
    longer = costs({**pretrained, "epochs": 4, "optimizer.sgd.lr": 0.5})
    assert longer is not None and longer.train_s == pytest.approx(7.0 + 2 * steps_s)
    larger = costs({**pretrained, "batch_size": 100})
    assert larger is not None
    step_s = 0.01 * 10**GROWTH
    init_s = 7.0 / 10 * step_s / 0.01
    assert larger.likely_s == pytest.approx(init_s + 20 * step_s)
    assert larger.train_s == pytest.approx(OPTIMISM * (init_s + 20 * 0.01))


def pretraining(epochs: int, part: float = 0.1) -> dict[str, Any]:
    name = "speedups.init.pretrain_subset"
    fields = {"speedups.init": "pretrain_subset", f"{name}.epochs": epochs, f"{name}.part": part}
    return {**PARAMS, **fields}


@pytest.mark.parametrize(
    ("constant_s", "seen", "asked"),
    [
        (0.0, [(3, 0.1)], (9, 0.1)),
        (0.0, [(3, 0.1)], (1, 0.4)),
        (1.5, [(3, 0.1), (4, 0.1), (5, 0.1)], (9, 0.1)),
        (1.5, [(3, 0.1), (4, 0.1), (5, 0.1)], (1, 0.05)),
        (4.0, [(2, 0.1), (1, 0.3)], (9, 0.5)),
    ],
)
def test_what_comes_before_the_first_step_grows_with_its_work(
    constant_s: float, seen: list[tuple[int, float]], asked: tuple[int, float]
) -> None:
    fields = {"epochs": {"low": 1, "high": 9}, "part": {"low": 0.05, "high": 0.5}}
    kinds = {"choices": {"off": {}, "pretrain_subset": fields}}
    costs = CostModel(SearchSpace.from_tree({**FIXED, "speedups": {"init": kinds}}), num_train=1000)

    def truth_s(epochs: int, part: float) -> float:
        return constant_s + 25.0 * epochs * part

    for number, work in enumerate(seen):
        measured = {"step_time_ms": 10.0, "init_s": truth_s(*work)}
        run = make_run(Status.MISSED).model_copy(update=measured)
        # Numbers that leave the work as it is are of no account.
        params = {**pretraining(*work), "optimizer.sgd.lr": 0.1 + number / 10}
        costs.finished(make_record(params=params, runs=(run,)))
    cost = costs(pretraining(*asked))
    assert cost is not None
    steps_s = costs.steps(PARAMS) * 0.01
    assert cost.train_s == pytest.approx(OPTIMISM * truth_s(*asked) + OPTIMISM * steps_s)
    assert cost.likely_s == pytest.approx(truth_s(*asked) + steps_s, rel=0.05)


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_keys_tell_apart_what_recipes_do_where_a_schedule_gives_momentum(name: str) -> None:
    cycles = {"cycle_momentum": {"choices": [True, False]}}
    momentum = {"choices": [0.0, 0.5, 0.9]}
    tree = {
        "model": "resnet20",
        "optimizer": {name: {"lr": 0.1, "nesterov": False, "momentum": momentum}},
        "epochs": 1,
        "batch_size": 10,
        "lr_schedule": {"choices": {"constant": {}, "one_cycle": cycles}},
    }
    space = SearchSpace.from_tree(tree)
    points = list(space.points())
    recipes = [Recipe.model_validate(space.build(params)).speed_fields() for params in points]
    for params, recipe in zip(points, recipes, strict=True):
        costs = CostModel(space, num_train=NUM_TRAIN)
        costs.learn(params, step_s=1.0)
        asked = [costs(other) for other in points]
        known = [cost is not None and cost.train_s == cost.num_steps for cost in asked]
        assert known == [recipe == other for other in recipes]


PRECISION = {"fp32": 1.0, "bf16": 0.55}
PAD = {0: 1.0, 2: 1.2}


def step_s(key: Key, samples: int) -> float:
    precision, pad, _ = key
    return 0.002 * PRECISION[precision] * PAD[pad] * samples**0.9


def seen(*keys: Key) -> dict[Key, tuple[float, int]]:
    return {key: (step_s(key, key[2]), key[2]) for key in keys}


def test_time_of_the_only_kind_is_its_own() -> None:
    key = ("fp32", 0, 64)
    assert StepTimes(seen(key))(key, 64) == pytest.approx(step_s(key, 64), rel=1e-6)


def test_from_one_kind_alone_a_batch_twice_as_large_takes_nearly_twice_as_long() -> None:
    key = ("fp32", 0, 64)
    ratio = StepTimes(seen(key))(("fp32", 0, 128), 128) / step_s(key, 64)
    assert ratio == pytest.approx(2**GROWTH, rel=1e-6)


def test_each_value_is_learned_from_the_kinds_that_share_the_others() -> None:
    every = list(itertools.product(PRECISION, PAD, (32, 64, 128)))
    for left_out in every:
        times = StepTimes(seen(*(key for key in every if key != left_out)))
        assert times(left_out, left_out[2]) == pytest.approx(
            step_s(left_out, left_out[2]), rel=0.08
        )


def test_slow_value_that_ran_once_is_expected_to_be_slow_elsewhere() -> None:
    ran = seen(("fp32", 0, 32), ("bf16", 0, 32), ("bf16", 2, 64), ("bf16", 0, 128))
    times = StepTimes(ran)
    ratio = times(("fp32", 2, 128), 128) / times(("bf16", 2, 128), 128)
    assert 1.4 < ratio < 1 / PRECISION["bf16"]


def test_prediction_is_that_of_scikit_learns_ridge() -> None:
    keys = [("fp32", 0, 32), ("bf16", 0, 64), ("bf16", 2, 32), ("fp32", 2, 128)]
    values = [(place, key[place]) for key in keys for place in range(3)]
    values = list(dict.fromkeys(values))
    scales = [LEVEL_SD, GROWTH_SD] + [FACTOR_SD] * len(values)

    def row(key: Key, samples: int) -> list[float]:
        hot = [float(key[place] == value) for place, value in values]
        return [x * s for x, s in zip([1.0, math.log(samples), *hot], scales, strict=True)]

    rest = np.array([math.log(step_s(k, k[2])) - GROWTH * math.log(k[2]) for k in keys])
    model = Ridge(alpha=REST_SD**2, fit_intercept=False)
    model.fit([row(k, k[2]) for k in keys], rest - rest.mean())
    new = ("bf16", 2, 256)
    theirs = rest.mean() + GROWTH * math.log(256) + model.predict([row(new, 256)])[0]
    assert math.log(StepTimes(seen(*keys))(new, 256)) == pytest.approx(theirs, abs=1e-6)
