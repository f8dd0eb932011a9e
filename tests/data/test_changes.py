"""Changes of colours, drawn operations and erasing, against torchvision's and timm's."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from timm.data.random_erasing import RandomErasing
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from tune_speed.data.augmentation import kernels
from tune_speed.data.augmentation.base import Change, Drawer, as_floats, as_integers
from tune_speed.data.augmentation.config import Augmentation, draw
from tune_speed.data.augmentation.crops import RandomResized
from tune_speed.data.augmentation.operations import (
    OPERATIONS,
    ColorJitter,
    Erasing,
    RandAugment,
    TrivialAugment,
)
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.data.orders import SampleOrder

HEIGHT, WIDTH = 40, 48
JITTER = ColorJitter(brightness=0.4, contrast=0.5, saturation=0.6, hue=0.1)
CHANGES: dict[str, Change] = {
    "jitter": JITTER,
    "rand_augment": RandAugment(num_ops=3, magnitude=20),
    "trivial_augment": TrivialAugment(),
    "bilinear": TrivialAugment(interpolation="bilinear"),
    "const": Erasing(probability=0.5),
    "rand": Erasing(probability=0.5, mode="rand"),
    "pixel": Erasing(probability=0.5, mode="pixel"),
}


def smooth(count: int, channels: int = 3) -> torch.Tensor:
    """Returns images without hard edges, of low and of high contrast, uint8."""
    numbers = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 6, 6, generator=numbers)
    fine = functional.resize(coarse, [HEIGHT, WIDTH])
    return (fine * torch.linspace(60, 255, count)[:, None, None, None]).to(torch.uint8)


def drawer(count: int, seed: int = 0) -> Drawer:
    return Drawer(count, seed, 0, HEIGHT, WIDTH)


def draws_of(change: Change, count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return {n: torch.from_numpy(v) for n, v in change.draw(drawer(count, seed)).items()}


def floats(change: Change, count: int) -> dict[str, np.ndarray]:
    return {name: as_floats(row).numpy() for name, row in draws_of(change, count).items()}


def is_distributed_alike(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(stats.ks_2samp(ours, theirs).pvalue > 1e-3)


def test_numbers_travel_as_their_bits() -> None:
    numbers = np.array([-1.5, 0.0, 1 / 3, 1e-30, 3e38])
    assert (as_floats(torch.from_numpy(as_integers(numbers))).numpy() == np.float32(numbers)).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_jittered_images_are_torchvisions_in_the_order_drawn(channels: int) -> None:
    images, draws = smooth(96, channels), draws_of(JITTER, 96)
    found = JITTER.apply(images.float(), draws)
    adjust = {
        name: getattr(functional, f"adjust_{name}")
        for name in ("brightness", "contrast", "saturation", "hue")
    }
    for place, (image, ours) in enumerate(zip(images, found, strict=True)):
        for step in range(4):
            name = OPERATIONS[int(draws[f"100_kind_{step}"][place])]
            image = adjust[name](image, float(as_floats(draws[f"100_amount_{step}"][place])))
        assert (ours - image).abs().mean() < 0.1 and (ours - image).abs().max() <= 8


def test_jitter_is_distributed_as_torchvisions() -> None:
    kinds, amounts = (
        np.stack([each[part] for each in JITTER.drawn(drawer(3000))]) for part in range(2)
    )
    theirs = v2.ColorJitter(0.4, 0.5, 0.6, 0.1)
    torch.manual_seed(0)
    drawn = [theirs.make_params([]) for _ in range(3000)]
    for name in ("brightness", "contrast", "saturation", "hue"):
        their = np.array([each[f"{name}_factor"] for each in drawn])
        assert is_distributed_alike(amounts[kinds == OPERATIONS.index(name)], their)
    orders = Counter(map(tuple, kinds.T))
    assert len(orders) == 24 and stats.chisquare([*orders.values()]).pvalue > 1e-3


def test_jitter_leaves_images_alone_with_the_rest_of_the_probability() -> None:
    rarely = JITTER.model_copy(update={"probability": 0.3})
    images = smooth(500).float()
    is_same = (rarely.apply(images.clone(), draws_of(rarely, 500)) == images).flatten(1).all(1)
    assert 0.62 < is_same.float().mean() < 0.78  # 4 standard deviations


def test_a_step_that_is_off_is_not_drawn() -> None:
    assert len(ColorJitter(contrast=0.1).draw(drawer(3))) == 2
    off = Augmentation(color_jitter=ColorJitter(probability=0.0, hue=0.1), erasing=Erasing())
    assert not draw(off, Drawer(3, 0, 0, 8, 8))
    assert "erase_noise" not in Erasing(probability=1.0).draw(drawer(3))


def torchvisions_name(operation: str) -> str:
    if operation == "saturation":
        return "Color"
    return "".join(word.capitalize() for word in operation.split("_"))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(TrivialAugment, v2.TrivialAugmentWide), (RandAugment, v2.RandAugment)],
)
def test_every_operation_gives_torchvisions_pixels(ours, theirs, interpolation) -> None:
    count = 600
    config, images = ours(interpolation=interpolation), smooth(count)
    draws, numbers = draws_of(config, count), drawer(count)
    bins = numbers.below(31, 301) if ours is TrivialAugment else np.full(count, 9)
    signs = numbers.below(2, config.stream + 2, 0)
    one = {name: row for name, row in draws.items() if name.endswith("_0")}
    found = config.apply(images.float(), one)
    transform, mode = theirs(), v2.InterpolationMode(interpolation)
    differences: dict[str, list[float]] = {}
    for place, image in enumerate(images):
        name = torchvisions_name(OPERATIONS[draws[f"{config.stream}_kind_0"][place]])
        magnitudes, is_signed = transform._AUGMENTATION_SPACE[name]
        strengths = magnitudes(31, HEIGHT, WIDTH)
        strength = 0.0 if strengths is None else float(strengths[bins[place]])
        if name.startswith("Translate") and 15.99 < strength < 16:
            strength = 16.0  # Half of 32, which rounds to 15 pixels in torchvision.
        if name == "Solarize":
            strength = 1 - bins[place] / 30  # In torchvision 119 may become 119.000008.
        strength = -strength if is_signed and signs[place] else strength
        expected = transform._apply_image_or_video_transform(image, name, strength, mode, {})
        difference = (found[place] - expected).abs().mean()
        differences.setdefault(name, []).append(float(difference))
    assert set(differences) == set(transform._AUGMENTATION_SPACE)
    assert {name: max(each) for name, each in differences.items() if max(each) >= 1} == {}
    assert max(map(np.mean, differences.values())) < 0.1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(TrivialAugment(), v2.TrivialAugmentWide()), (RandAugment(), v2.RandAugment())],
)
def test_operations_are_distributed_as_torchvisions(ours, theirs, monkeypatch) -> None:
    drawn: list[tuple[str, float]] = []
    monkeypatch.setattr(
        theirs,
        "_apply_image_or_video_transform",
        lambda image, name, strength, **_: drawn.append((name, strength)) or image,
    )
    torch.manual_seed(0)
    image = smooth(1)[0]
    while len(drawn) < 6000:
        theirs(image)
    operations, amounts = ours.drawn(drawer(6000))[0]
    counts = Counter(torchvisions_name(OPERATIONS[each]) for each in operations)
    their_counts = Counter(name for name, _ in drawn)
    table = [[every[name] for name in counts] for every in (counts, their_counts)]
    assert len(counts) == 14 and stats.chi2_contingency(table).pvalue > 1e-3
    for name, unit in (("rotate", 1.0), ("shear_y", 1.0), ("translate_x", 1 / WIDTH)):
        strengths = np.array([s for each, s in drawn if each == torchvisions_name(name)])
        found = amounts[operations == OPERATIONS.index(name)]
        theirs_as_ours = np.trunc(strengths) * unit if unit < 1 else strengths
        assert is_distributed_alike(found.astype(float).round(4), theirs_as_ours.round(4))


def rectangles(change: Erasing, count: int) -> np.ndarray:
    numbers = floats(change, count)
    sides = {"y": HEIGHT, "x": WIDTH, "h": HEIGHT, "w": WIDTH}
    return np.stack([numbers[f"erase_{axis}"] * side for axis, side in sides.items()]).round()


def test_rectangles_are_distributed_as_timms() -> None:
    ours = rectangles(Erasing(probability=0.4), 4000)
    random.seed(0)
    erase, theirs = RandomErasing(0.4, device="cpu"), []
    for _ in range(4000):
        rows, columns = np.nonzero(erase(torch.ones(1, HEIGHT, WIDTH))[0].numpy() == 0)
        if len(rows):
            low, high = (rows.min(), columns.min()), (rows.max() + 1, columns.max() + 1)
            theirs.append((*low, *np.subtract(high, low)))
    ours = ours[:, ours[2] > 0]
    assert abs(ours.shape[1] - len(theirs)) < 4 * np.sqrt(2 * 4000 * 0.24)
    for our, their in zip(ours, np.array(theirs).T, strict=True):
        assert is_distributed_alike(our, their)


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_rectangles_are_erased_and_nothing_else(mode: str) -> None:
    change = Erasing(probability=0.5, mode=mode)
    images = torch.full((200, 3, HEIGHT, WIDTH), 99.0)
    found, values = change.apply(images, draws_of(change, 200)), []
    for image, (top, left, height, width) in zip(
        found, rectangles(change, 200).T.astype(int), strict=True
    ):
        part = image[:, top : top + height, left : left + width]
        values.append(part[:, :1, :1] if mode == "rand" else part)
        assert (part == (0 if mode == "const" else values[-1])).all()
        assert ((image == 99).sum(), part.numel()) == (image.numel() - part.numel(), part.numel())
    noise = torch.cat([each.flatten() for each in values]).double().numpy()
    if mode != "const":
        assert stats.kstest(noise, "norm").pvalue > 1e-3 and len({*noise}) > 0.98 * len(noise)


@pytest.mark.parametrize("name", CHANGES)
def test_masks_for_the_whole_batch_change_the_same_as_one_image_by_itself(name, monkeypatch):
    change, images = CHANGES[name], smooth(60).float()
    draws = draws_of(change, 60)
    expected = change.apply(images.clone(), draws)

    def masked(chosen, kernel, images, *numbers):
        return torch.where(chosen[:, None, None, None], kernel(images, *numbers), images)

    monkeypatch.setattr(kernels, "where", masked)
    found = change.apply(images, draws)
    assert (found - expected).abs().max() <= 1 and (found != expected).float().mean() < 0.01
    assert not torch.equal(expected, images)


@pytest.mark.parametrize("name", CHANGES)
def test_no_change_waits_for_the_device(name: str) -> None:
    # Fake tensors have no values: what needs one on the host, or mixes devices, is an error.
    change = CHANGES[name]
    with FakeTensorMode():
        images = torch.empty(16, 3, HEIGHT, WIDTH, device="cuda")
        number = torch.zeros(16, dtype=torch.int64, device="cuda")
        changed = change.apply(images, dict.fromkeys(change.draw(drawer(1)), number))
    assert changed.device.type == "cuda" and changed.shape == images.shape


def images_by_label(loader, augmentation, batch_size: int, size: int = 32):
    pixels = smooth(24).permute(0, 2, 3, 1).contiguous().numpy()
    images = Images(pixels, np.arange(24))
    order, thirds = SampleOrder(24, batch_size, 1), (0.5,) * 3
    batching = Batching(order, thirds, thirds, torch.device("cpu"), augmentation, image_size=size)
    opened = loader.open(images, batching)
    found = {
        int(label): image
        for batch, labels in opened.epoch(3)
        for image, label in zip(batch, labels, strict=True)
    }
    opened.close()
    return found


@pytest.mark.parametrize("other", [Streaming(), Streaming(workers=2)])
def test_an_image_is_changed_alike_with_every_loader_and_batch_size(other) -> None:
    augmentation = Augmentation(
        crop=RandomResized(),
        flip="random",
        auto=RandAugment(),
        color_jitter=JITTER,
        erasing=Erasing(probability=0.5, mode="pixel"),
    )
    ours = images_by_label(Resident(), augmentation, 8)
    theirs = images_by_label(other, augmentation, 5)
    assert len(ours) == 24 and all(torch.equal(ours[label], theirs[label]) for label in ours)
    plain = images_by_label(Resident(), Augmentation(crop=RandomResized(), flip="random"), 8)
    assert not any(torch.equal(ours[label], plain[label]) for label in ours)
