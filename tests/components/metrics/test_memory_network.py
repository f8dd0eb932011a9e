"""S0's equations 5 to 7, no effect on training, by hand."""

import numpy as np
import pytest

from tune_speed.components.metrics.memory_network import allocated_memory, pin_score, updated_memory


def test_allocated_memory_trades_similarity_against_pinned_slots() -> None:
    """Sums: 0.5·4 + 2·1 - 2β and 0.5·2 + 2·1 - 0β, that is 4 - 2β and 3."""
    similarities = np.array([[4.0, 1.0], [2.0, 1.0]])
    pinned = np.array([[1.0, 1.0], [0.0, 0.0]])
    alpha = np.array([0.5, 2.0])
    assert allocated_memory(similarities, pinned, alpha=alpha, beta=0.4) == 0
    assert allocated_memory(similarities, pinned, alpha=alpha, beta=0.6) == 1


def test_pin_score_of_a_slot_that_is_pinned_for_two_steps_of_three() -> None:
    """(1 - 0.5) + (1 - 0) + (0 - 0.5), over 3."""
    assert pin_score([0, 1, 1, 0], gamma=1.0, delta=0.5) == pytest.approx(1 / 3)


def test_slot_that_stays_pinned_scores_gamma() -> None:
    assert pin_score([1, 1, 1], gamma=0.7, delta=5.0) == pytest.approx(0.7)


def test_memory_is_a_mean_of_itself_and_what_is_new() -> None:
    memory, hidden, gradient = np.array([8.0, 0.0]), np.array([1.0, 2.0]), np.array([10.0, -10.0])
    updated = updated_memory(memory, hidden, gradient, pinned=1.0, rho=0.75, eta=2.0, xi=0.1)
    assert updated == pytest.approx([0.75 * 8 + 0.25 * 3, 0.25 * 3])
    without = updated_memory(memory, hidden, gradient, pinned=0.0, rho=0.75, eta=2.0, xi=0.1)
    assert without == pytest.approx([6.5, 1.0])
