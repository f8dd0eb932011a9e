import copy
import json
import pickle
import warnings

import optuna
import pytest
from helpers.tuning.spaces import PARAMS, TREE, TREES, fits
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.samplers import distributions, suggest

optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def space():
    return SearchSpace.from_tree(TREE)


def random_trial(seed):
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()


def with_sampler(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = {
            "tpe": lambda: optuna.samplers.TPESampler(
                seed=1, multivariate=True, group=True, n_startup_trials=5
            ),
            "random": lambda: optuna.samplers.RandomSampler(seed=1),
            "qmc": lambda: optuna.samplers.QMCSampler(seed=1),
        }
        return optuna.create_study(sampler=samplers[name]())


def test_parameters_are_the_leaves_by_their_paths(space):
    kinds = {p.name: (p.kind, dict(p.condition)) for p in space.parameters}
    assert kinds == {
        "optimizer": ("categorical", {}),
        "optimizer.sgd.lr": ("float", {"optimizer": "sgd"}),
        "optimizer.adamw.lr": ("float", {"optimizer": "adamw"}),
        "epochs": ("int", {}),
        "width": ("int", {}),
        "smoothing": ("float", {}),
        "batch_size": ("categorical", {}),
        "clip": ("categorical", {}),
        "nested.loader": ("categorical", {}),
        "nested.loader.a": ("categorical", {"nested.loader": "a"}),
        "nested.loader.a.b.w": ("int", {"nested.loader": "a", "nested.loader.a": "b"}),
    }


def test_build_puts_values_in_the_place_of_leaves(space):
    assert space.build(PARAMS) == {
        "model": {"resnet20": {}},
        "optimizer": {"sgd": {"lr": 0.5, "nesterov": True}},
        "epochs": 10,
        "width": 32,
        "smoothing": 0.2,
        "batch_size": 128,
        "clip": None,
        "nested": {"loader": {"a": {"b": {"w": 1}}}},
    }


def test_branch_without_fields_is_built_empty(space):
    params = {k: v for k, v in PARAMS.items() if k != "optimizer.sgd.lr"}
    assert space.build({**params, "optimizer": "plain"})["optimizer"] == {"plain": {}}


def test_built_tree_shares_nothing_with_the_space(space):
    space.build(PARAMS)["model"]["resnet20"]["x"] = 1
    assert space.build(PARAMS)["model"] == {"resnet20": {}}


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_every_proposal_of_a_real_study_can_be_built(space, sampler):
    study = with_sampler(sampler)
    for number in range(25):
        trial = study.ask()
        params = suggest(space, trial)
        assert fits(TREE, space.build(params))
        assert params == trial.params
        study.tell(trial, float(number))


@given(TREES, st.integers(0, 2**20))
@settings(max_examples=60)
def test_random_tree_is_translated_as_it_is_meant(tree, seed):
    space = SearchSpace.from_tree(tree)
    params = suggest(space, random_trial(seed))
    built = space.build(params)
    assert fits(tree, built)
    stored = json.loads(json.dumps(params))
    assert space.build(stored) == built
    assert space.read(stored) == params
    assert suggest(space, optuna.trial.FixedTrial(params)) == params


@given(TREES)
@settings(max_examples=60)
def test_points_are_all_different_and_as_many_as_the_size(tree):
    space = SearchSpace.from_tree(tree)
    if space.size is None or space.size > 1000:
        return
    points = list(space.points())
    assert len({json.dumps(point) for point in points}) == len(points) == space.size
    assert all(fits(tree, space.build(point)) for point in points)


@given(TREES)
@settings(max_examples=50)
def test_corners_are_points_with_every_choice(tree):
    space = SearchSpace.from_tree(tree)
    corners = list(space.corners(limit=20))
    assert all(fits(tree, space.build(corner)) for corner in corners)
    for parameter in space.parameters:
        seen = [corner[parameter.name] for corner in corners if parameter.name in corner]
        assert all(end in seen for end in parameter.ends())


def test_stored_trials_feed_a_new_study(space):
    study = with_sampler("tpe")
    for number in range(12):
        stored = json.loads(json.dumps(suggest(space, random_trial(number))))
        study.add_trial(
            optuna.trial.create_trial(
                params=space.read(stored),
                distributions=distributions(space, stored),
                value=float(number),
            )
        )
    for _ in range(3):
        trial = study.ask()
        assert fits(TREE, space.build(suggest(space, trial)))
        study.tell(trial, 0.0)


def test_enqueued_params_come_back_as_they_were(space):
    study = with_sampler("tpe")
    study.enqueue_trial(space.read(json.loads(json.dumps(PARAMS))))
    assert suggest(space, study.ask()) == PARAMS


def test_distributions_are_what_suggest_asks_for(space):
    trial = random_trial(3)
    params = suggest(space, trial)
    assert distributions(space, params) == trial.distributions
    assert trial.distributions["epochs"] == optuna.distributions.IntDistribution(4, 40, log=True)
    assert trial.distributions["smoothing"] == optuna.distributions.FloatDistribution(
        0.0, 0.3, step=0.1
    )


MISFITS = {
    "epochs": (41, "must be from 4 to 40"),
    "width": (33, "in steps of 16"),
    "smoothing": ("0.2", "must be a number"),
    "optimizer": ("adam", 'one of "sgd", "adamw", "plain"'),
    "clip": (True, "must be one of"),
    "optimizer.adamw.lr": (0.001, "must be left out, but got optimizer=sgd"),
    "epoch": (4, "is not searched here. Did you mean `epochs`?"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_params_of_another_space_are_refused(space, name):
    value, must = MISFITS[name]
    with pytest.raises(ConfigError) as caught:
        space.build({**PARAMS, name: value})
    assert [p.path for p in caught.value.problems] == [name]
    assert must in str(caught.value)


def test_missing_param_is_refused(space):
    with pytest.raises(ConfigError, match="epochs: must be given: from 4 to 40"):
        space.build({k: v for k, v in PARAMS.items() if k != "epochs"})


def test_hash_depends_on_meaning_alone(space):
    def hash_with(**changes):
        return SearchSpace.from_tree({**TREE, **changes}).hash

    assert SearchSpace.from_tree(dict(reversed(TREE.items()))).hash == space.hash
    assert hash_with(epochs={"high": 40, "log": True, "low": 4}) == space.hash
    assert hash_with(width={"low": 16, "high": 64, "step": 16, "log": False}) == space.hash
    others = [
        hash_with(batch_size={"choices": [128, 64, 256]}),
        hash_with(model={"resnet20": {"stem": "cifar"}}),
        hash_with(epochs={"low": 4, "high": 40}),
        hash_with(width={"low": 16.0, "high": 64, "step": 16}),
        hash_with(clip=None),
    ]
    assert len({space.hash, *others}) == 6


def test_space_survives_pickling_and_the_callers_changes(space):
    tree = copy.deepcopy(TREE)
    own = SearchSpace.from_tree(tree)
    tree["model"]["resnet20"]["x"] = 1
    assert own.hash == space.hash == pickle.loads(pickle.dumps(own)).hash


def test_fixed_space_has_one_point():
    space = SearchSpace.from_tree({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert not space.parameters
    assert space.size == 1
    assert list(space.points()) == [{}]
    assert space.build({}) == {"a": 1, "b": {"c": [1, 2], "d": None}}


def test_grid_of_a_space_without_conditions_feeds_optunas_grid_sampler():
    tree = {"a": {"choices": [1, "x"]}, "b": {"low": 0, "high": 4, "step": 2}, "c": 1}
    space = SearchSpace.from_tree(tree)
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(space.grid()))
    study.optimize(lambda trial: len(suggest(space, trial)), n_trials=100)
    seen = sorted(json.dumps(trial.params) for trial in study.trials)
    assert seen == sorted(json.dumps(point) for point in space.points())
    assert len(seen) == space.size == 6


def test_grid_needs_whole_steps(space):
    with pytest.raises(ConfigError, match=r"optimizer\.sgd\.lr") as caught:
        space.grid()
    assert [p.path for p in caught.value.problems] == ["optimizer.sgd.lr", "optimizer.adamw.lr"]
    assert space.size is None


def test_float_grid_has_decimal_steps():
    space = SearchSpace.from_tree({"a": {"low": 0.1, "high": 0.5, "step": 0.1}})
    assert space.grid() == {"a": [0.1, 0.2, 0.3, 0.4, 0.5]}


def test_size_multiplies_fields_and_adds_branches():
    tree = {
        "a": {"choices": {"x": {"p": {"low": 1, "high": 3}, "q": {"choices": [1, 2]}}, "y": {}}},
        "b": {"choices": [1, 2, 3, 4]},
    }
    assert SearchSpace.from_tree(tree).size == (3 * 2 + 1) * 4
