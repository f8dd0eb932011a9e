"""Training, validation and test part of a data set, fixed by a seed.

Parts are disjoint and stratified: each class keeps its share to within one image. The same seed
gives the same parts on every machine; `split_hash` says which.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, DataError, Problem
from tune_speed.core.text import printable
from tune_speed.data import randomness
from tune_speed.data.base import (
    Images,
    MappedRows,
    Pixels,
    class_counts,
    file_map,
    main_classes,
)
from tune_speed.data.cache import PreparedData

Indices = NDArray[np.int64]
TrainedOn = Literal["train", "train+validation"]
# A larger part of a mapped set is not copied: its pages are shared by all processes of a node.
MOST_COPIED_BYTES = 2**30
# Images per step of the statistics; sums of 100 squares fit into 32 bits with room to spare.
CHUNK = 100
MOST_NAMES = 5
"""Of classes, in a line."""


class SplitConfig(Config):
    """How a data set is cut; part of a workload's identity."""

    validation_frac: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training images that a search is judged on, never trained on; of those left
    where a test part was set aside before."""
    test_frac: float = Field(default=0.2, gt=0, lt=1)
    """Share of all images set aside for certified results; used only where the data set brings no
    test part."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the cut and of the subsets."""
    train_samples: int | None = Field(default=None, ge=1)
    """Size of the training part: a subset, of which `long_tail` says how the classes share in it;
    None: all."""
    validation_samples: int | None = Field(default=None, ge=1)
    """Size of the validation part: a subset with the classes in proportion; None: all."""
    long_tail: float | None = Field(
        default=None, gt=0, le=1, exclude_if=lambda ratio: ratio is None
    )
    """Images of the last class over those of the first in the training part, with equal ratios from
    class to class; needs `train_samples`, and leaves the other parts as they are. None: classes in
    proportion. Source: Cui et al. 2019, long-tailed CIFAR (arXiv:1901.05555)."""

    @model_validator(mode="after")
    def _size_is_known(self) -> Self:
        if self.long_tail is not None and self.train_samples is None:
            raise ValueError("train_samples must be given with long_tail")
        return self


class SplitSizes(NamedTuple):
    """Number of images of each part."""

    train: int
    validation: int
    test: int


class Splits(NamedTuple):
    """The three parts, and what is known of the training part."""

    train: Images
    validation: Images
    test: Images
    mean: tuple[float, ...]
    """Mean of each channel over the training part, pixels in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel over the training part, pixels in [0, 1]."""
    num_classes: int
    split_hash: str
    """16 hex digits over the data and the choice of images in each part."""
    copies: int = 0
    """Validation and test images that are in the training part, too, pixel by pixel."""


def split_sizes(
    num_train: int, num_test: int | None, split: SplitConfig, *, num_validation: int = 0
) -> SplitSizes:
    """Returns the sizes that `make_splits` gives, known before any image is decoded.

    Of `num_train` images the last `num_validation` are a part of their own; `num_test` None: none.

    Raises: ConfigError if a part would be empty, or a subset is larger than what it is taken from.
    """
    left = num_train - num_validation
    test = _share(split.test_frac, left) if num_test is None else num_test
    left -= test if num_test is None else 0
    validation = 0 if num_validation else _share(split.validation_frac, left)
    whole = SplitSizes(train=left - validation, validation=num_validation or validation, test=test)
    if problems := tuple(_size_problems(whole, split)):
        raise ConfigError(problems=problems)
    return whole._replace(
        train=split.train_samples or whole.train,
        validation=split.validation_samples or whole.validation,
    )


def make_splits(
    data: PreparedData, split: SplitConfig, *, trained_on: TrainedOn = "train"
) -> Splits:
    """Returns the parts of `data`, in the data's order: copies, or left in the file if large.

    With `trained_on="train+validation"` the images of the validation part are in both parts.

    Raises: ConfigError as `split_sizes`, or a class is too small for its part of the long tail;
        DataError if a class has no training image, or a channel is the same in all of them.
    """
    num_test = None if data.test is None else len(data.test.labels)
    num_train, num_validation = len(data.train.labels), data.num_validation
    sizes = split_sizes(num_train, num_test, split, num_validation=num_validation)
    train, validation, test = _choose(data, split, sizes)
    copies = _copies(data, train, validation, test)
    if trained_on == "train+validation":
        train = np.union1d(train, validation)
    counts = class_counts(data.train.labels[train], len(data.class_names))
    if not counts.all():
        missing = int(counts.argmin())
        brought = int(class_counts(data.train.labels, len(data.class_names))[missing])
        raise DataError(
            "Every class must have an image in the training part, but class"
            f" `{data.class_names[missing]}` has none of its {brought} there"
            f" (train_samples={split.train_samples}). Add images of it, or raise train_samples."
        )
    parts = [_rows(data.train, indices) for indices in (train, validation, test)]
    digest = hashlib.sha256(data.data_hash.encode())
    for part in (train, validation, test):
        digest.update(f"/{len(part)}/".encode() + part.astype("<i8").tobytes())
    mean, std = channel_statistics(parts[0].pixels)
    return Splits(
        train=parts[0],
        validation=parts[1],
        test=parts[2] if data.test is None else data.test,
        mean=mean,
        std=std,
        num_classes=len(data.class_names),
        split_hash=digest.hexdigest()[:16],
        copies=copies,
    )


def in_words(splits: Splits, class_names: Sequence[str]) -> Iterator[str]:
    names = ", ".join(map(printable, class_names[:MOST_NAMES]))
    more = " …" if len(class_names) > MOST_NAMES else ""
    train, validation, test = (len(part.labels) for part in splits[:3])
    yield (
        f"data: {len(class_names):,} classes ({names}{more}); {train:,} training, {validation:,}"
        f" validation and {test:,} test images"
    )
    if splits.copies:
        yield (
            f"copies: {splits.copies:,} of the {validation + test:,} validation and test images are"
            " training images too, pixel by pixel, so results look better than they are"
        )


def channel_statistics(pixels: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and (population) standard deviation of each channel of (N, H, W, C), in [0, 1].

    Raises: DataError if a channel has the same value everywhere: it cannot be normalised.
    """
    count = math.prod(pixels.shape[:-1])
    # The sums are integers, so that the result is exact to rounding.
    sums, squares = _channel_sums(pixels)
    deviations = [math.sqrt(q * count - s * s) / count for s, q in zip(sums, squares, strict=True)]
    if 0 in deviations:
        flat = deviations.index(0)
        raise DataError(
            f"Every channel must vary over the training part, but channel {flat} is"
            f" {sums[flat] // count} in each pixel. Are the images blank?"
        )
    return tuple(s / count / 255 for s in sums), tuple(d / 255 for d in deviations)


def quotas(counts: Indices, total: int) -> Indices:
    """Returns how many of each class to take, `total` in all: their shares by largest remainder.

    Class c with n_c of n images gets floor(total * n_c / n), and the images still missing go to the
    classes with the largest remainders; to those that would be left with none, last.
    """
    taken, remainder = np.divmod(counts * total, counts.sum())
    order = np.lexsort((-remainder, counts - taken <= 1))
    taken[order[: total - taken.sum()]] += 1
    return np.asarray(taken)


def long_tail(num_classes: int, total: int, *, ratio: float) -> Indices:
    """Returns the images of each class, `total` in all, in proportion to ratio^(j / (K - 1))."""
    steps = max(1, num_classes - 1)
    shares = [math.pow(ratio, j / steps) for j in range(num_classes)]
    exact = np.array([total * share / math.fsum(shares) for share in shares])
    numbers = np.floor(exact).astype(np.int64)
    largest_remainders = np.argsort(numbers - exact, kind="stable")
    numbers[largest_remainders[: total - numbers.sum()]] += 1
    return np.asarray(numbers)


def _channel_sums(pixels: Pixels) -> tuple[list[int], list[int]]:
    # Summing images at equal positions keeps the inner loop long: 30 times quicker than summing
    # (pixels, channels) over its first axis.
    width = int(np.prod(pixels.shape[1:]))
    sums, squares = np.zeros(width, np.uint64), np.zeros(width, np.uint64)
    for start in range(0, len(pixels), CHUNK):
        values = pixels[start : start + CHUNK].reshape(-1, width).astype(np.uint32)
        sums += values.sum(axis=0, dtype=np.uint32)
        values *= values
        squares += values.sum(axis=0, dtype=np.uint32)
    channels = pixels.shape[-1]
    by_channel = [total.reshape(-1, channels).sum(axis=0).tolist() for total in (sums, squares)]
    return by_channel[0], by_channel[1]


def _share(fraction: float, count: int) -> int:
    return int(fraction * count + 0.5)


def _size_problems(whole: SplitSizes, split: SplitConfig) -> Iterator[Problem]:
    fractions = f"validation_frac={split.validation_frac}, test_frac={split.test_frac}"
    for part, size in whole._asdict().items():
        if size < 1:
            must = f"must leave at least one image for the {part} part of {sum(whole)} images"
            yield Problem(path="split", must=must, given=fractions)
    subsets = {
        "train_samples": (split.train_samples, whole.train),
        "validation_samples": (split.validation_samples, whole.validation),
    }
    for field, (samples, most) in subsets.items():
        if samples is not None and samples > most:
            must = f"must be at most {most}"
            yield Problem(path=f"split.{field}", must=must, given=str(samples))


def _choose(data: PreparedData, split: SplitConfig, sizes: SplitSizes) -> list[Indices]:
    """Returns the indices of training, validation and (if it is cut off here) test part, sorted."""
    count = len(data.train.labels) - data.num_validation
    classes = _by_class(data, randomness.permutation(split.seed, count=count))
    num_test = sizes.test if data.test is None else 0
    test, classes = _take(classes, num_test)
    if data.num_validation:
        brought = randomness.permutation(split.seed, count=data.num_validation)
        validation = _by_class(data, count + brought)
    else:
        validation, classes = _take(classes, _share(split.validation_frac, count - num_test))
    if split.validation_samples is not None:
        validation, _ = _take(validation, sizes.validation)
    train = classes if split.train_samples is None else _take_train(classes, split, sizes.train)
    return [np.sort(np.concatenate(part)) for part in (train, validation, test)]


def _by_class(data: PreparedData, order: Indices) -> list[Indices]:
    labels = main_classes(data.train.labels)[order]
    num_classes = len(data.class_names) + (data.train.labels.ndim == 2)
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(order[np.argsort(labels, kind="stable")], np.cumsum(counts)[:-1])


def _copies(data: PreparedData, train: Indices, validation: Indices, test: Indices) -> int:
    if not data.digests:
        return 0
    own, *brought = data.digests
    judged = np.concatenate([own[validation], brought[0] if brought else own[test]])
    return int(np.isin(judged, own[train]).sum())


def _take(classes: list[Indices], total: int) -> tuple[list[Indices], list[Indices]]:
    numbers = quotas(np.array([len(members) for members in classes]), total)
    taken = [members[:n] for members, n in zip(classes, numbers, strict=True)]
    return taken, [members[n:] for members, n in zip(classes, numbers, strict=True)]


def _take_train(classes: list[Indices], split: SplitConfig, total: int) -> list[Indices]:
    if split.long_tail is None:
        return _take(classes, total)[0]
    numbers = long_tail(len(classes), total, ratio=split.long_tail)
    for number, (members, wanted) in enumerate(zip(classes, numbers, strict=True)):
        if wanted > len(members):
            must = (
                f"must leave class {number} at most the {len(members)} images that it has, but"
                f" long_tail={split.long_tail} gives it {wanted}"
            )
            raise ConfigError.of("split.train_samples", must, given=str(split.train_samples))
    return [members[:n] for members, n in zip(classes, numbers, strict=True)]


def _rows(images: Images, indices: Indices) -> Images:
    """Returns the images `indices`: a copy, or left where they are if they are many and mapped."""
    pixels, labels = images.pixels, images.labels[indices]
    assert isinstance(pixels, np.ndarray), "a set is whole, before it is cut"
    num_bytes = len(indices) * math.prod(pixels.shape[1:])
    if num_bytes > MOST_COPIED_BYTES and file_map(pixels) is not None:
        return Images(MappedRows(pixels, indices), labels)
    return Images(pixels.take(indices, axis=0), labels)
