from itertools import groupby

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.batches import (
    BatchStages,
    ProgressiveResizing,
    SelectiveBackprop,
    draw_by_rank,
)
from tune_speed.core.errors import ConfigError


def test_default_doubles_at_one_half_and_three_quarters():
    assert BatchStages().growth() == ((0.5, 1), (0.25, 2), (0.25, 4))


def test_lists_are_taken_as_in_yaml():
    config = BatchStages(factors=[1, 3], at=[0, 0.25])
    assert config.growth() == ((0.25, 1), (0.75, 3))
    assert config == BatchStages.model_validate_json('{"factors": [1, 3], "at": [0, 0.25]}')


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factors": [1, 2]}, "as many entries"),
        ({"factors": [], "at": []}, "at least one"),
        ({"at": [0.1, 0.5, 0.75]}, "begin with 0"),
        ({"at": [0.0, 0.5, 0.5]}, "ascending"),
        ({"at": [0.0, 0.5, 1.0]}, "less than 1"),
        ({"factors": [1, 0, 4]}, "greater than or equal to 1"),
        ({"factors": [1, 1.5, 4]}, "valid integer"),
        ({"factors": 3}, "valid tuple"),
    ],
)
def test_impossible_stages_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        BatchStages(**fields)


WHOLE = Shape(32, 32)


def sizes(config, *, num_steps=20, whole=WHOLE):
    shapes = [config.shape(whole, frac=step / num_steps) for step in range(num_steps)]
    return [((s.height, s.width), len(list(same))) for s, same in groupby(shapes)]


def test_sizes_of_20_steps_are_composers():
    expected = [(16, 11), (20, 2), (24, 1), (28, 2), (32, 4)]
    assert sizes(ProgressiveResizing()) == [((side, side), n) for side, n in expected]


def test_sizes_stay_multiples_and_never_exceed_the_image():
    config = ProgressiveResizing(initial_scale=0.3, multiple=8)
    seen = [size for size, _ in sizes(config, num_steps=200, whole=Shape(30, 44))]
    assert seen[0] == (8, 16) and seen[-1] == (30, 44)
    assert all(h % 8 == w % 8 == 0 for h, w in seen if (h, w) != (30, 44) and h != 30)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"delay_frac": 0.6, "finetune_frac": 0.4}, [(16, 12), (32, 8)]),
        ({"initial_scale": 1.0}, [(32, 20)]),
        ({"delay_frac": 0.0, "finetune_frac": 0.0, "multiple": 16}, [(16, 10), (32, 10)]),
    ],
)
def test_ramp_may_be_a_jump_or_nothing(fields, expected):
    steps = sizes(ProgressiveResizing(**fields))
    assert steps == [((side, side), n) for side, n in expected]


def test_other_parts_of_the_shape_stay():
    shape = Shape(32, 32, growth=2, kept_frac=0.5, stage=3)
    assert ProgressiveResizing().shape(shape, frac=0.0) == Shape(16, 16, 2, 0.5, 3)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_images_are_resized_and_keep_their_memory_format(mode):
    config = ProgressiveResizing(mode=mode)
    images = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)
    small, labels = config.change_batch(images, torch.tensor([3, 1]), Shape(4, 4))
    assert labels.tolist() == [3, 1]
    assert small.shape == (2, 3, 4, 4)
    assert small.is_contiguous(memory_format=torch.channels_last)
    assert config.change_batch(images, labels, Shape(8, 8)) == (images, labels)


def test_nearest_takes_every_other_pixel_and_bilinear_keeps_the_mean():
    images = torch.arange(16.0).reshape(1, 1, 4, 4)
    label = torch.tensor([0])
    nearest, _ = ProgressiveResizing().change_batch(images, label, Shape(2, 2))
    assert torch.equal(nearest, images[:, :, ::2, ::2])
    bilinear, _ = ProgressiveResizing(mode="bilinear").change_batch(images, label, Shape(2, 2))
    assert bilinear.mean().item() == pytest.approx(images.mean().item())


def test_half_the_side_is_a_quarter_of_the_operations():
    network = nn.Conv2d(3, 8, 3, padding=1)
    counts = []
    for shape in (WHOLE, ProgressiveResizing().shape(WHOLE, frac=0.0)):
        images = torch.zeros(2, 3, 32, 32)
        images, _ = ProgressiveResizing().change_batch(images, torch.tensor([0, 1]), shape)
        with FlopCounterMode(display=False) as counter:
            network(images)
        counts.append(counter.get_total_flops())
    assert counts[0] == 4 * counts[1]


@pytest.mark.parametrize(
    "config",
    [ResNet20(), TorchVision(name="alexnet"), Timm(name="resnet10t")],
)
def test_networks_with_global_pooling_are_taken(config):
    network = config.network(in_channels=3, num_classes=10, image_size=64)
    before = torch.get_rng_state()
    ProgressiveResizing().check_model(network)
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training and not next(network.parameters()).is_meta


def test_vision_transformer_is_refused_whatever_its_size():
    for size in (32, 64):
        config = Timm(name="vit_tiny_patch16_224")
        network = config.network(in_channels=3, num_classes=10, image_size=size)
        with pytest.raises(ConfigError, match="takes images of any size") as caught:
            ProgressiveResizing().check_model(network)
        assert caught.value.__cause__ is not None


def test_network_without_global_pooling_is_refused():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2))
    with pytest.raises(ConfigError, match="Sequential, which does not"):
        ProgressiveResizing().check_model(network)


def test_delay_and_finetuning_must_fit_into_the_run():
    with pytest.raises(ValueError, match="must be at most 1"):
        ProgressiveResizing(delay_frac=0.6, finetune_frac=0.5)


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
