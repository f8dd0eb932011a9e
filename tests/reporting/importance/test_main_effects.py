"""Main effects against what can be computed by hand, and against Optuna's functional ANOVA."""

import math
import warnings

import numpy as np
import optuna
import pytest
from sklearn.tree import DecisionTreeRegressor

from tune_speed.reporting.importance import main_effects as module
from tune_speed.reporting.importance.main_effects import Effects, columns_of, main_effects


def _effects(rows, outcome, *, seed=0) -> Effects:
    return main_effects(columns_of(rows), rows, np.array(outcome), seed=seed)


def _uniform(n: int, names: str, *, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    return [{name: float(rng.random()) for name in names} for _ in range(n)]


def test_an_additive_function_gives_the_shares_of_its_squared_slopes():
    rows = _uniform(500, "abc")
    effects = _effects(rows, [3 * row["a"] + row["b"] for row in rows]).by_name
    assert effects["a"].value == pytest.approx(0.9, abs=0.04)
    assert effects["b"].value == pytest.approx(0.1, abs=0.04)
    assert effects["c"].value < 0.005


def test_ishigamis_function_gives_its_first_order_indices():
    """0.3139, 0.4424 and 0: Ishigami & Homma, 1990, with a = 7 and b = 0.1."""
    rows = _uniform(1000, "abc", seed=1)
    angles = [[math.pi * (2 * row[name] - 1) for name in "abc"] for row in rows]
    outcome = [math.sin(a) + 7 * math.sin(b) ** 2 + 0.1 * c**4 * math.sin(a) for a, b, c in angles]
    effects = _effects(rows, outcome).by_name
    assert effects["a"].value == pytest.approx(0.314, abs=0.08)
    assert effects["b"].value == pytest.approx(0.442, abs=0.08)
    assert effects["c"].value < 0.03


def test_a_pure_interaction_has_no_main_effect():
    rows = _uniform(600, "ab")
    outcome = [math.copysign(1, row["a"] - 0.5) * (row["b"] > 0.5) for row in rows]
    effects = _effects(rows, outcome).by_name
    # E[y | b] is 0 everywhere; E[y | a] is ±1/2, half of the variance of 1/2.
    assert effects["b"].value < 0.02
    assert effects["a"].value == pytest.approx(0.5, abs=0.06)


def test_the_band_of_a_useless_parameter_holds_small_values():
    rng = np.random.default_rng(3)
    rows = _uniform(60, "ab")
    effects = _effects(rows, [row["a"] + 0.2 * rng.standard_normal() for row in rows]).by_name
    assert effects["b"].low < 0.02
    assert effects["b"].value < 0.1
    assert effects["a"].low > effects["b"].high


def test_a_category_counts_as_one_parameter():
    rng = np.random.default_rng(0)
    kinds = {"sgd": 0.0, "adam": 1.0, "muon": 5.0}
    names = [str(name) for name in rng.choice(list(kinds), 300)]
    rows = [{"kind": name, "a": float(rng.random())} for name in names]
    outcome = [kinds[row["kind"]] + row["a"] for row in rows]
    effects = _effects(rows, outcome).by_name
    # Of three equally likely values 0, 1, 5 the variance is 14/3; that of `a` is 1/12.
    assert effects["kind"].value == pytest.approx((14 / 3) / (14 / 3 + 1 / 12), abs=0.02)
    assert set(effects) == {"kind", "a"}


def test_a_conditional_parameter_counts_where_it_plays_a_part():
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(600):
        name = str(rng.choice(["sgd", "adam"]))
        rows.append({"opt": name, f"opt.{name}.lr": float(rng.random()), "b": float(rng.random())})
    outcome = [row["opt.sgd.lr"] * 2 if row["opt"] == "sgd" else 1.0 for row in rows]
    effects = _effects(rows, outcome).by_name
    # y is 2 lr for sgd and 1 for adam, 1 in the mean of both: all of the variance is lr's of sgd.
    assert effects["opt.sgd.lr"].value == pytest.approx(1.0, abs=0.05)
    assert effects["opt.adam.lr"].value < 0.01
    assert effects["opt"].value < 0.01


def test_absence_is_the_parents_effect_not_the_childs():
    rng = np.random.default_rng(0)
    names = [str(name) for name in rng.choice(["sgd", "adam"], 300)]
    rows = [{"opt": name, f"opt.{name}.lr": float(rng.random())} for name in names]
    effects = _effects(rows, [float(name == "sgd") for name in names]).by_name
    assert effects["opt"].value > 0.99
    assert effects["opt.sgd.lr"].value < 0.01


def test_the_order_is_that_of_optunas_functional_anova():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        depth = trial.suggest_int("depth", 1, 20)
        kind = trial.suggest_categorical("kind", ["p", "q"])
        trial.suggest_float("unused", 0.5, 1.0)
        return (math.log10(lr) + 2) ** 2 + 0.1 * depth + (1.5 if kind == "p" else 0.0)

    study.optimize(objective, n_trials=150)
    ours = _effects([t.params for t in study.trials], [t.value for t in study.trials]).by_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        theirs = optuna.importance.get_param_importances(study, evaluator=evaluator)
    assert sorted(ours, key=lambda name: -ours[name].value) == list(theirs)
    total = sum(effect.value for effect in ours.values())
    assert all(ours[name].value / total == pytest.approx(theirs[name], abs=0.1) for name in ours)


def test_a_seed_gives_the_same_effects_twice():
    rows = _uniform(40, "ab")
    outcome = [row["a"] for row in rows]
    assert _effects(rows, outcome, seed=4) == _effects(rows, outcome, seed=4)
    assert _effects(rows, outcome, seed=4) != _effects(rows, outcome, seed=5)


def test_trees_of_very_many_trials_see_some_and_say_the_same(monkeypatch):
    monkeypatch.setattr(module, "MOST_OF_TREE", 300)
    fitted = []
    fit = DecisionTreeRegressor.fit
    monkeypatch.setattr(
        DecisionTreeRegressor,
        "fit",
        lambda tree, x, y, **more: fitted.append(len(y)) or fit(tree, x, y, **more),
    )
    rows = _uniform(3000, "abc")
    effects = _effects(rows, [3 * row["a"] + row["b"] for row in rows])
    assert set(fitted) == {300}
    assert effects.by_name["a"].value == pytest.approx(0.9, abs=0.04)
    assert effects.by_name["b"].value == pytest.approx(0.1, abs=0.04)
    assert effects.explained > 0.95


def test_noise_is_not_explained():
    rng = np.random.default_rng(0)
    rows = _uniform(50, "ab")
    assert _effects(rows, list(rng.standard_normal(50))).explained < 0.1
    assert _effects(rows, [row["a"] for row in rows]).explained > 0.9
