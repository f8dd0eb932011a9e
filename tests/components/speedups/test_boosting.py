import math

import numpy as np
import pytest

from tune_speed.components.speedups import boosting

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 4, size=50)
SIGNS = RANDOM.choice([-1.0, 1.0], size=50)


def probabilities(num_classes=4):
    raised = np.exp(RANDOM.normal(size=(50, num_classes)))
    return raised / raised.sum(axis=1, keepdims=True)


def test_weak_modules_telescope_to_the_last_hypothesis():
    outputs = [probabilities() for _ in range(6)]
    alphas = [0.3, -0.2, 0.9, 1.4, 0.1, 0.7]
    boosted = sum(boosting.weak_modules(outputs, alphas))
    np.testing.assert_allclose(boosted / alphas[-1], outputs[-1], atol=1e-14)


def test_added_edge_is_that_of_the_paper():
    assert boosting.added_edge(0.5, 0.6) == pytest.approx(math.sqrt(0.11 / 0.75))
    assert boosting.added_edge(0.5, 0.6) == pytest.approx(0.383, abs=5e-4)
    assert boosting.added_edge(0.0, 0.4) == pytest.approx(0.4)
    assert boosting.added_edge(0.6, 0.5) < 0


def test_weight_is_half_the_log_odds_of_the_edge():
    assert boosting.weight_of(0.6) == pytest.approx(0.5 * math.log(1.6 / 0.4))
    assert boosting.weight_of(0.0) == 0.0


def test_weight_minimises_the_exponential_loss_of_outputs_of_plus_or_minus_one():
    outputs = np.where(RANDOM.random(50) < 0.8, SIGNS, -SIGNS)
    weights = np.full(50, 1 / 50)
    alpha = boosting.weight_of(boosting.binary_edge(weights, SIGNS, outputs))
    grid = alpha + np.linspace(-1, 1, 2001)
    losses = [np.exp(-a * SIGNS * outputs).mean() for a in grid]
    assert grid[int(np.argmin(losses))] == pytest.approx(alpha, abs=1e-3)


def test_weights_after_all_modules_are_those_of_the_last_hypothesis():
    outputs = [RANDOM.uniform(-1, 1, size=50) for _ in range(4)]
    alphas = [0.5, 0.8, 0.6, 1.1]
    weights = np.full(50, 1 / 50)
    for module in boosting.weak_modules(outputs, alphas):
        weights = boosting.reweighted(weights, SIGNS, module)
    expected = np.exp(-SIGNS * alphas[-1] * outputs[-1])
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-12)


def test_costs_are_the_definition_spelt_out():
    scores = RANDOM.normal(size=(50, 4))
    cost = boosting.costs(scores, LABELS)
    for i in range(50):
        wrong = [label for label in range(4) if label != LABELS[i]]
        for label in wrong:
            assert cost[i, label] == pytest.approx(
                math.exp(scores[i, label] - scores[i, LABELS[i]])
            )
        assert cost[i, LABELS[i]] == pytest.approx(-sum(cost[i, label] for label in wrong))


def test_multiclass_edge_of_the_truth_is_one_and_of_no_opinion_zero():
    cost = boosting.costs(RANDOM.normal(size=(50, 4)), LABELS)
    assert boosting.multiclass_edge(cost, np.eye(4)[LABELS]) == pytest.approx(1.0)
    assert boosting.multiclass_edge(cost, np.full((50, 4), 0.25)) == pytest.approx(0.0, abs=1e-12)


def test_two_classes_have_the_binary_edge():
    labels = (SIGNS > 0).astype(np.int64)
    scores, outputs = RANDOM.normal(size=(50, 2)), probabilities(2)
    cost = boosting.costs(scores, labels)
    weights = np.exp(-SIGNS * (scores[:, 1] - scores[:, 0]))
    expected = boosting.binary_edge(weights, SIGNS, outputs[:, 1] - outputs[:, 0])
    assert boosting.multiclass_edge(cost, outputs) == pytest.approx(expected)


def test_stages_are_weighed_by_what_the_one_before_got_wrong():
    right = np.eye(4)[LABELS]
    better = 0.5 * right + 0.5 / 4
    first, second = boosting.follow([better, right * 0.9 + 0.1 / 4], LABELS)
    assert first.edge == pytest.approx(0.5) and first.added_edge == pytest.approx(0.5)
    assert second.edge == pytest.approx(0.9)
    assert second.added_edge == pytest.approx(boosting.added_edge(0.5, 0.9))
    assert second.alpha == pytest.approx(math.atanh(0.9))


def test_error_bound_holds_for_boosted_thresholds():
    """AdaBoost on thresholds of one number, where the edges are known exactly."""
    inputs, weights = np.linspace(0, 1, 50), np.full(50, 1 / 50)
    labels = np.where((inputs < 0.3) | (inputs > 0.8), 1.0, -1.0)
    margins, gammas = np.zeros(50), []
    for _ in range(10):
        stumps = [s * np.where(inputs > t, 1.0, -1.0) for t in inputs for s in (-1, 1)]
        module = max(stumps, key=lambda stump: boosting.binary_edge(weights, labels, stump))
        gammas.append(boosting.binary_edge(weights, labels, module))
        alpha = boosting.weight_of(gammas[-1])
        margins += alpha * labels * module
        weights = boosting.reweighted(weights, labels, alpha * module)
        assert np.mean(margins <= 0) <= boosting.error_bound(len(gammas), min(gammas))
