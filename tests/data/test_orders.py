from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.config import Component, descriptions
from tune_speed.data import ORDERS
from tune_speed.data.orders import (
    WHOLE,
    Curriculum,
    CurriculumOrder,
    Order,
    RepeatFactor,
    SampleOrder,
    Share,
    Shuffle,
    WholeSteps,
    balanced,
    repeat_factors,
)
from tune_speed.data.randomness import permutation
from tune_speed.data.split import long_tail

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
def test_every_beginning_has_the_same_share_of_classes_of_unequal_size(sizes):
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


LABELS_ORDERS_CONTRACT = np.repeat(np.arange(3), (60, 30, 10))
NAMES = sorted(ORDERS)


def open_order(name: str, *, seed: int = 1) -> Order:
    return ORDERS[name]().open(LABELS_ORDERS_CONTRACT, batch_size=8, samples_per_step=16, seed=seed)


def scored_of_orders_contract(name: str, *, seed: int = 1) -> Order:
    scores = np.random.default_rng(0).random(len(LABELS_ORDERS_CONTRACT))
    return open_order(name, seed=seed).with_scores(scores)


@pytest.mark.parametrize("name", NAMES)
def test_config_round_trips_through_json(name: str) -> None:
    config = ORDERS[name]()
    assert ORDERS[name].model_validate_json(config.model_dump_json()) == config
    read, fields = Component(ORDERS).split(Component(ORDERS).join(config))
    assert ORDERS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_order_and_field_is_described_with_its_source(name: str) -> None:
    assert "Source:" in (ORDERS[name].__doc__ or "")
    assert set(descriptions(ORDERS[name])) == set(ORDERS[name].model_fields)


@pytest.mark.parametrize("make", [open_order, scored_of_orders_contract])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_have_the_samples_that_they_say(name: str, make: object) -> None:
    order = make(name)  # type: ignore[operator]
    for number in range(12):
        indices = order.epoch(number)
        assert indices.dtype == np.int64 and len(indices) == order.num_in(number) >= 1
        assert indices.min() >= 0 and indices.max() < len(LABELS_ORDERS_CONTRACT)
        assert order.repeats or len(set(indices)) == len(indices)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_follow_from_seed_and_number_alone(name: str) -> None:
    order, again, other = (
        scored_of_orders_contract(name),
        scored_of_orders_contract(name),
        scored_of_orders_contract(name, seed=2),
    )
    for number in (9, 0, 10):
        assert (order.epoch(number) == again.epoch(number)).all()
        assert (
            order.num_in(number) != other.num_in(number)
            or (order.epoch(number) != other.epoch(number)).any()
        )
    assert order.epoch(9).tolist() != order.epoch(10).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_order_without_scores_shows_every_image_in_every_round(name: str) -> None:
    order = open_order(name)
    for number in range(3):
        assert set(order.epoch(number)) == set(range(len(LABELS_ORDERS_CONTRACT)))


def test_shuffle_is_the_permutation_of_seed_and_epoch() -> None:
    order = Shuffle().open(LABELS_ORDERS_CONTRACT, batch_size=8, samples_per_step=16, seed=5)
    for epoch in range(3):
        assert (order.epoch(epoch) == permutation(5, epoch, 0, count=100)).all()


def test_factors_are_those_of_the_formula() -> None:
    shares = np.array([0.5, 0.1, 0.01, 0.001, 0.0001])
    assert repeat_factors(shares, 0.001) == pytest.approx([1, 1, 1, 1, 3.1622777])


def test_factors_of_long_tailed_cifar10() -> None:
    counts = long_tail(10, 12_406, ratio=0.01)
    expected = [1, 1, 1, 1.07, 1.39, 1.79, 2.31, 2.99, 3.87, 4.98]
    assert repeat_factors(counts / counts.sum(), 0.1) == pytest.approx(expected, abs=0.005)


def test_images_come_as_often_as_their_factor_says() -> None:
    factors = np.array([1.0, 1.25, 2.5, 3.0])
    order = SampleOrder(200, 8, 3, factors=np.repeat(factors, 50))
    counts = np.stack([np.bincount(order.epoch(epoch), minlength=200) for epoch in range(60)])
    whole = np.floor(order.factors)
    assert ((counts == whole) | (counts == whole + 1)).all()
    means = counts.mean(axis=0).reshape(4, 50).mean(axis=1)
    # 3,000 draws of a coin have a standard deviation of 0.009.
    assert means == pytest.approx(factors, abs=0.036)
    assert (means == factors)[[0, 3]].all()


def test_length_is_drawn_anew_each_epoch() -> None:
    order = SampleOrder(100, 8, 0, factors=np.full(100, 1.5))
    assert len({order.num_in(epoch) for epoch in range(20)}) > 5


def test_without_a_rare_class_it_is_the_plain_shuffle() -> None:
    labels = np.arange(60) % 3
    fields = {"batch_size": 8, "samples_per_step": 8, "seed": 2}
    order = RepeatFactor(threshold=0.3).open(labels, **fields)
    assert not order.repeats
    for epoch in range(3):
        assert (order.epoch(epoch) == Shuffle().open(labels, **fields).epoch(epoch)).all()


def test_class_without_images_has_factor_one() -> None:
    assert repeat_factors(np.array([1.0, 0.0]), 0.5).tolist() == [1, 1]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 60))
def test_each_sample_of_each_step_goes_to_one_device(size: int, each: int, num: int) -> None:
    samples_per_step = size * each
    epoch = np.arange(num)
    shares = [Share(rank, size, samples_per_step) for rank in range(size)]
    begins = [0] * size
    for first in range(0, num, samples_per_step):
        count = min(samples_per_step, num - first)
        ends = [b + c for b, c in zip(begins, shares[0].counts(count), strict=True)]
        taken = [s.of(epoch)[b:e] for s, b, e in zip(shares, begins, ends, strict=True)]
        assert np.concatenate(taken).tolist() == list(range(first, first + count))
        begins = ends


@given(st.integers(1, 8), st.integers(0, 40))
def test_ragged_steps_are_cut_evenly_and_the_first_has_most(size: int, num: int) -> None:
    counts = Share(0, size, 5 * size).counts(num)
    assert sum(counts) == num and len(counts) == size
    assert sorted(counts, reverse=True) == list(counts)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("num", [0, 1, 7])
def test_the_only_device_takes_everything(num: int) -> None:
    epoch = np.arange(num)
    assert WHOLE.of(epoch) is epoch and WHOLE.counts(num) == (num,)


def test_tables_are_cut_along_their_last_axis() -> None:
    table = np.arange(20).reshape(2, 10)
    assert Share(1, 2, 4).of(table).tolist() == [[2, 3, 6, 7, 9], [12, 13, 16, 17, 19]]


LABELS_WHOLE_STEPS = np.repeat(np.arange(3), (60, 30, 13))
STEP = 16


def opened(name: str) -> Order:
    return ORDERS[name]().open(LABELS_WHOLE_STEPS, batch_size=8, samples_per_step=STEP, seed=1)


@pytest.mark.parametrize("is_scored", [False, True])
@pytest.mark.parametrize("name", sorted(ORDERS))
def test_rounds_lack_the_ragged_end_of_the_other_orders_and_nothing_else(name, is_scored):
    other = opened(name)
    order: Order = WholeSteps(other, STEP, 8, 1)
    if is_scored:
        scores = np.random.default_rng(0).random(len(LABELS_WHOLE_STEPS))
        other, order = other.with_scores(scores), order.with_scores(scores)
    assert order.repeats == other.repeats
    for number in range(8):
        whole, kept = other.epoch(number), order.epoch(number)
        assert len(kept) == order.num_in(number) == STEP * (len(whole) // STEP)
        assert (kept == whole[: len(kept)]).all()


def test_a_set_of_less_than_a_step_is_kept() -> None:
    order = WholeSteps(opened("shuffle"), 200, 8, 1)
    assert order.num_in(0) == len(order.epoch(0)) == len(LABELS_WHOLE_STEPS)
