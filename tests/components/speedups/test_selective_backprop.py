import pytest
import torch

from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.batches import SelectiveBackprop, draw_by_rank

SHAPE = Shape(4, 4)
IMAGES = torch.arange(8.0).reshape(8, 1, 1, 1).expand(8, 1, 4, 4)
LABELS = torch.arange(8)


def by_label(images, labels):
    return labels.float()


def test_it_acts_between_start_and_end_only():
    config = SelectiveBackprop(start=0.25, end=0.5, keep=0.3)
    fractions = [0.0, 0.2, 0.25, 0.4, 0.5, 0.9]
    kept = [config.shape(SHAPE, frac=frac).kept_frac for frac in fractions]
    assert kept == [1, 1, 0.3, 0.3, 1, 1]


@pytest.mark.parametrize(("keep", "expected"), [(0.5, 4), (0.3, 2), (0.01, 1), (1.0, 8)])
def test_as_many_samples_are_chosen_as_it_says(keep, expected):
    config = SelectiveBackprop(keep=keep)
    shape = config.shape(SHAPE, frac=0.6)
    images, labels = config.choose(IMAGES, LABELS, shape, losses=by_label)
    assert config.kept(8, shape) == len(labels) == len(images) == expected
    assert len(set(labels.tolist())) == expected
    assert torch.equal(images[:, 0, 0, 0], labels.float())


def test_outside_of_its_time_the_batch_is_not_even_looked_at():
    images, labels = SelectiveBackprop().choose(IMAGES, LABELS, SHAPE, losses=None)
    assert images is IMAGES and labels is LABELS


def test_drawing_one_follows_the_weights():
    torch.manual_seed(0)
    losses = torch.tensor([0.3, 0.1, 0.2, 0.4])
    draws = torch.stack([draw_by_rank(losses, 1, power=2.0) for _ in range(8000)]).flatten()
    weights = torch.tensor([2.5, 0.5, 1.5, 3.5]) ** 2
    shares = torch.bincount(draws, minlength=4) / 8000
    # The standard deviation of a share is at most 0.0056.
    assert torch.allclose(shares, weights / weights.sum(), atol=0.02)


def test_second_draw_follows_the_weights_that_are_left():
    torch.manual_seed(1)
    losses = torch.tensor([1.0, 2.0, 3.0])
    missed = [3 - sum(draw_by_rank(losses, 2, power=1.0).tolist()) for _ in range(8000)]
    # Weights 1, 3, 5 of 9: sample 0 is missed if 1 and 2 come, in either order.
    expected = 3 / 9 * 5 / 6 + 5 / 9 * 3 / 4
    assert missed.count(0) / 8000 == pytest.approx(expected, abs=0.02)


def test_all_are_drawn_where_all_are_kept():
    assert sorted(draw_by_rank(torch.rand(5), 5, power=1.0).tolist()) == list(range(5))


def test_draws_follow_from_the_seed():
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(draw_by_rank(torch.arange(20.0), 7, power=1.0).tolist())
    assert drawn[0] == drawn[1]


def test_start_must_come_before_end():
    with pytest.raises(ValueError, match="start must be less than end"):
        SelectiveBackprop(start=0.9, end=0.5)
