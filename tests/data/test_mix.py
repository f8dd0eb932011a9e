"""Mixup and cutmix."""

from typing import Any

import numpy as np
import pytest
import timm.data.mixup
import torch
from scipy import stats
from torch import Tensor

from tune_speed.data.augmentation.base import Drawer
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.mix import WHOLE, draw, mixed
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import LoaderConfig, Resident, Streaming
from tune_speed.data.orders import SampleOrder, Share
from tune_speed.training.autotune.micro_batch import halved
from tune_speed.training.recipe import Recipe

NUM_IMAGES, NUM_CLASSES = 27, 4
BOTH = Augmentation(mixup=0.4, cutmix=1.0)
CPU = torch.device("cpu")


def numbers(count: int, *, seed: int = 3, epoch: int = 5, **more: Any) -> dict[str, np.ndarray]:
    settings = {"mixup": 0.0, "cutmix": 0.0, "prob": 1.0, "switch_prob": 0.5, **more}
    return draw(Drawer(count, seed, epoch), **settings)


def on_device(draws: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in draws.items()}


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_shares_are_drawn_from_the_beta_distribution(kind: str, alpha: float) -> None:
    draws = numbers(20_000, **{kind: alpha})
    shares = draws["mix_own"] / WHOLE if kind == "mixup" else 1 - (draws["mix_side"] / WHOLE) ** 2
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    if kind == "cutmix":
        for axis in "yx":
            assert stats.kstest(draws[f"mix_{axis}"] / WHOLE, "uniform").pvalue > 0.01


def test_chances_of_a_mix_and_of_cutmix_are_those_given() -> None:
    draws = numbers(20_000, mixup=0.8, cutmix=1.0, prob=0.7, switch_prob=0.25)
    is_cut, is_mixed = draws["mix_side"] > 0, draws["mix_own"] < WHOLE
    assert is_cut.mean() == pytest.approx(0.7 * 0.25, abs=0.01)
    assert is_mixed.mean() == pytest.approx(0.7 * 0.75, abs=0.01)
    assert not (is_cut & is_mixed).any()


def test_mixup_is_a_sum_by_the_share() -> None:
    images, labels = torch.randn(6, 3, 5, 7), torch.tensor([0, 1, 2, 3, 0, 1])
    draws = numbers(6, mixup=1.0)
    found, targets = mixed(images, labels, on_device(draws), num_classes=NUM_CLASSES)
    for place, share in enumerate(draws["mix_own"] / WHOLE):
        other = place ^ 1
        expected = share * images[place] + (1 - share) * images[other]
        torch.testing.assert_close(found[place], expected, atol=1e-5, rtol=1e-5)
        target = np.zeros(NUM_CLASSES)
        target[labels[place]] += share
        target[labels[other]] += 1 - share
        assert targets[place].numpy() == pytest.approx(target, abs=1e-6)


def test_cutmix_has_timms_box_and_its_corrected_share(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = torch.randn(64, 3, 10, 13), torch.arange(64) % NUM_CLASSES
    draws = numbers(64, cutmix=1.0)
    found, targets = mixed(images, labels, on_device(draws), num_classes=NUM_CLASSES)
    for place in range(64):
        centre = {10: draws["mix_y"][place] * 10 // WHOLE, 13: draws["mix_x"][place] * 13 // WHOLE}
        monkeypatch.setattr(np.random, "randint", lambda low, high, size=None, c=centre: c[high])
        share = 1 - (draws["mix_side"][place] / WHOLE) ** 2
        box, share = timm.data.mixup.cutmix_bbox_and_lam((10, 13), share)
        top, bottom, left, right = box
        expected = images[place].clone()
        expected[:, top:bottom, left:right] = images[place ^ 1, :, top:bottom, left:right]
        assert torch.equal(found[place], expected)
        same = labels[place] == labels[place ^ 1]
        assert targets[place, labels[place]].item() == pytest.approx(1.0 if same else share)


def test_smoothed_targets_are_timms() -> None:
    images, labels = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    draws = {"mix_own": torch.full((6,), WHOLE * 3 // 4)}
    _, targets = mixed(images, labels, draws, num_classes=NUM_CLASSES)
    logits = torch.randn(6, NUM_CLASSES)
    # timm pairs an image with the one at the other end of the batch.
    order = torch.tensor([0, 2, 4, 5, 3, 1])
    theirs = timm.data.mixup.mixup_target(labels[order], NUM_CLASSES, 0.75, 0.1)
    by_hand = -(theirs * logits[order].log_softmax(dim=1)).sum()
    ours = torch.nn.functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    assert ours.item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_the_odd_last_image_and_those_of_no_mix_stay_as_they_are() -> None:
    images = torch.randn(5, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3, 1])
    found, targets = mixed(images, labels, on_device(numbers(5, mixup=1.0)), num_classes=4)
    assert torch.equal(found[4], images[4]) and targets[4].tolist() == [0, 1, 0, 0]
    assert found.is_contiguous(memory_format=torch.channels_last)
    draws = on_device(numbers(5, mixup=1.0, cutmix=1.0, prob=0.0))
    found, targets = mixed(images, labels, draws, num_classes=4)
    assert torch.equal(found, images) and torch.equal(targets.argmax(dim=1), labels)


def epoch_of(config: LoaderConfig, order: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """Returns all images and labels of an epoch."""
    pixels = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 6, 7, 3), np.uint8)
    images = Images(pixels, np.arange(NUM_IMAGES) % NUM_CLASSES)
    batching = Batching(order, (0.5,) * 3, (0.2,) * 3, CPU, BOTH, num_classes=NUM_CLASSES, **more)
    loader = config.open(images, batching)
    try:
        images, labels = zip(*loader.epoch(2), strict=True)
    finally:
        loader.close()
    return torch.cat(images), torch.cat(labels)


ALONE = epoch_of(Resident(), SampleOrder(NUM_IMAGES, 16, 1))


@pytest.mark.parametrize("batch_size", [2, 8, 26, 40])
@pytest.mark.parametrize("config", [Resident(), Streaming()], ids=["resident", "streamed"])
def test_the_mix_does_not_depend_on_batch_size_and_loader(config: Any, batch_size: int) -> None:
    found = epoch_of(config, SampleOrder(NUM_IMAGES, batch_size, 1))
    assert all(map(torch.equal, found, ALONE))


@pytest.mark.parametrize("size", [2, 3])
def test_devices_get_what_one_gets(size: int) -> None:
    """The last step has 3 images, or 15, which leaves pairs on one device."""
    order = SampleOrder(NUM_IMAGES, 4, 1)
    parts = []
    for rank in range(size):
        share = Share(rank, size, 4 * size, together=2)
        images, labels = epoch_of(Resident(), order, share=share)
        parts.append((share.of(np.arange(NUM_IMAGES)), images, labels))
        assert len(images) == share.counts(NUM_IMAGES)[rank]
    places = torch.from_numpy(np.concatenate([part[0] for part in parts]))
    for which in (0, 1):
        together = torch.cat([part[1 + which] for part in parts])
        assert torch.equal(together, ALONE[which][places])


def test_an_order_that_repeats_images_mixes_by_position() -> None:
    factors = np.where(np.arange(NUM_IMAGES) % NUM_CLASSES == 0, 2.0, 1.0)
    orders = (SampleOrder(NUM_IMAGES, size, 1, factors=factors) for size in (4, 32))
    few, many = (epoch_of(Resident(), order) for order in orders)
    assert all(map(torch.equal, few, many)) and len(few[0]) == factors.sum()


def recipe(**fields: Any) -> Recipe:
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, **fields}
    return Recipe.model_validate(tree)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_odd_batches_are_refused(kind: str) -> None:
    config = {"augmentation": {kind: 0.2}}
    recipe(batch_size=6, **config)
    with pytest.raises(ValueError, match="batch_size must be even"):
        recipe(batch_size=5, **config)
    auto = {"accumulation_steps": "auto", "effective_batch_size": 6}
    recipe(**auto, **config)
    with pytest.raises(ValueError, match="effective_batch_size must be even"):
        recipe(devices=2, **auto, **config)


def test_memory_halves_to_even_batches_only() -> None:
    smaller = halved(recipe(batch_size=12, augmentation={"mixup": 0.2}))
    sizes = []
    while smaller is not None:
        sizes.append(smaller.batch_size)
        smaller = halved(smaller)
    assert sizes == [6, 2]


def test_a_recipe_without_mixes_is_written_and_timed_as_before() -> None:
    assert (
        not {"mixup", "cutmix", "mixup_prob"}
        & recipe(batch_size=4).augmentation.model_dump().keys()
    )
    keys = [
        recipe(batch_size=4, augmentation={"mixup": alpha}).speed_fields() for alpha in (0.1, 0.3)
    ]
    assert keys[0] == keys[1] != recipe(batch_size=4).speed_fields()
