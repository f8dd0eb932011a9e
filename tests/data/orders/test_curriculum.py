from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tune_speed.data.orders import Curriculum, CurriculumOrder, balanced

NUM_IMAGES = 500
LABELS = np.random.default_rng(1).permutation(np.arange(NUM_IMAGES) % 5)
SCORES = np.random.default_rng(2).random(NUM_IMAGES)


def scored(scores: np.ndarray = SCORES, **fields: Any) -> CurriculumOrder:
    config = Curriculum(**{"step_length": 10} | fields)
    order = config.open(LABELS, batch_size=8, samples_per_step=16, seed=4)
    result = order.with_scores(scores)
    assert isinstance(result, CurriculumOrder)
    return result


def shares(order: CurriculumOrder) -> list[float]:
    return [len(set(order.epoch(number))) / NUM_IMAGES for number in range(8)]


def hardest_shown(order: CurriculumOrder, number: int, scores: np.ndarray = SCORES) -> list[float]:
    shown = np.unique(order.epoch(number))
    return [float(scores[shown[LABELS[shown] == c]].max()) for c in range(5)]


def easiest_hidden(order: CurriculumOrder, number: int, scores: np.ndarray = SCORES) -> list[float]:
    hidden = np.setdiff1d(np.arange(NUM_IMAGES), order.epoch(number))
    return [float(scores[hidden[LABELS[hidden] == c]].min()) for c in range(5)]


def test_share_grows_by_its_factor_up_to_one() -> None:
    expected = [0.04, 0.076, 0.1444, 0.27436, 0.521284, 0.99043960, 1]
    assert Curriculum().fractions() == pytest.approx(expected)
    # Enough steps to come past every image of a stage: 50 * 16 samples.
    assert shares(scored(step_length=50)) == pytest.approx([*expected, 1], abs=0.5 / NUM_IMAGES)


@pytest.mark.parametrize(("start", "growth"), [(1.0, 2.0), (0.5, 2.0), (0.1, 10.0), (0.001, 1.01)])
def test_fractions_end_with_one_and_have_it_once(start: float, growth: float) -> None:
    fractions = Curriculum(start_frac=start, growth=growth).fractions()
    assert fractions[0] == start and fractions.index(1.0) == len(fractions) - 1
    # A power of the growth may miss 1 by rounding, and one stage more be needed.
    assert len(fractions) <= np.log(1 / start) / np.log(growth) + 2


def test_a_stage_lasts_its_optimizer_steps_and_then_rounds_are_epochs() -> None:
    order = scored()
    assert [order.num_in(number) for number in range(8)] == [160] * 6 + [500] * 2


def test_stage_goes_through_its_images_in_passes_of_other_orders() -> None:
    order = scored()
    first, second, rest = np.split(order.epoch(2), [72, 144])
    assert set(first) == set(second) >= set(rest)
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("number", range(5))
def test_easy_images_of_each_class_come_first(number: int) -> None:
    order = scored(step_length=50)
    hidden = easiest_hidden(order, number)
    assert all(a < b for a, b in zip(hardest_shown(order, number), hidden, strict=True))


def test_anti_order_is_easy_order_of_negated_scores() -> None:
    anti, negated = scored(direction="anti"), scored(-SCORES)
    assert (anti.ranked == negated.ranked).all()


def test_random_control_ignores_the_scores_and_has_the_same_sizes() -> None:
    order, other = (scored(scores, direction="random") for scores in (SCORES, -SCORES))
    assert (order.ranked == other.ranked).all() and order.sizes == scored().sizes
    correlation = np.corrcoef(SCORES[order.ranked], np.arange(NUM_IMAGES))[0, 1]
    assert abs(correlation) < 4 / NUM_IMAGES**0.5


def counts_of_beginnings(order: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the images of each class in the first 1, 2, … images, (N, K)."""
    return np.cumsum(labels[order][:, None] == np.arange(labels.max() + 1), axis=0)


def test_every_beginning_has_the_classes_in_balance() -> None:
    counts = counts_of_beginnings(scored().ranked, LABELS)
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()


@pytest.mark.parametrize("sizes", [(300, 100, 20), (1, 1, 50), (40,)])
def test_every_beginning_has_the_same_share_of_classes_of_unequal_size(
    sizes: Sequence[int],
) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    counts = counts_of_beginnings(balanced(np.arange(len(labels)), labels), labels)
    # There is a share that all classes have, to within half an image of each.
    lowest = ((counts - 0.5) / sizes).max(axis=1)
    highest = ((counts + 0.5) / sizes).min(axis=1)
    assert (lowest <= highest + 1e-12).all()


def test_image_without_a_finite_loss_counts_as_hardest() -> None:
    scores = SCORES.copy()
    scores[[3, 7]] = np.nan, np.inf
    assert {3, 7} <= set(scored(scores).ranked[-10:])
