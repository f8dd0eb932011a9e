"""Training, validation and test part of a data set, fixed by a seed.

Parts are disjoint and stratified: each class keeps its share to within one image. An image of
several classes counts as one of the rarest of them. Where images are in groups, no group is in two
parts: the size of a part is the nearest to its share that whole groups allow, and classes keep
theirs to within about a group. The same seed gives the same parts on every machine; `split_hash`
says which.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tune_speed.core.config import Config, left_out
from tune_speed.core.errors import ConfigError, DataError, Problem
from tune_speed.core.text import printable
from tune_speed.data import randomness
from tune_speed.data.base import (
    Counts,
    EncodedRows,
    Grouped,
    Images,
    Indices,
    MappedRows,
    Pixels,
    class_counts,
    file_map,
    main_classes,
)
from tune_speed.data.cache import PreparedData

TrainedOn = Literal["train", "train+validation"]
# A larger part of a mapped set is not copied: its pages are shared by all processes of a node.
MOST_COPIED_BYTES = 2**30
# Images per step of the statistics; sums of 100 squares fit into 32 bits with room to spare.
CHUNK = 100
SAMPLED = 10_000
"""Images of a larger set that its statistics are of."""
SAMPLED_ENCODED = 1000
"""The same where each has to be decoded, which takes 2 ms: their error is 0.01 at most."""
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
    long_tail: float | None = left_out(None, gt=0, le=1)
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
    class_names: tuple[str, ...] = ()


def split_sizes(counts: Counts, split: SplitConfig) -> SplitSizes:
    """Returns the sizes that `make_splits` gives, known before any image is decoded.

    Raises: ConfigError if a part would be empty, or a subset is larger than what it is taken from.
    """
    if counts.grouped is not None:
        cut_off, validation, left = map(len, _cut_groups(counts, counts.grouped, split))
    else:
        left = counts.train - counts.validation
        cut_off = _share(split.test_frac, left) if counts.test is None else 0
        left -= cut_off
        validation = 0 if counts.validation else _share(split.validation_frac, left)
        left -= validation
    whole = SplitSizes(left, counts.validation or validation, cut_off + (counts.test or 0))
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
    if data.train.labels.ndim == 2 and split.long_tail is not None:
        must = "must be null where an image may be of several classes"
        raise ConfigError.of("split.long_tail", must, given=str(split.long_tail))
    counted = Counts.of(data)
    train, validation, test = _choose(data, split, counted, split_sizes(counted, split))
    copies = 0
    if data.digests:
        first, *brought = data.digests
        judged = np.concatenate([first[validation], brought[0] if brought else first[test]])
        copies = int(np.isin(judged, first[train]).sum())
    if trained_on == "train+validation":
        train = np.union1d(train, validation)
    counts = class_counts(data.train.labels[train], len(data.class_names))
    if not counts.all():
        missing = int(counts.argmin())
        given = int(class_counts(data.train.labels, len(counts))[missing])
        raise DataError(
            "Every class must have an image in the training part, but class"
            f" `{data.class_names[missing]}` has none of its {given} there"
            f" (train_samples={split.train_samples}). Add images of it, or raise train_samples."
        )
    own, held, tested = (_rows(data.train, indices) for indices in (train, validation, test))
    digest = hashlib.sha256(data.data_hash.encode())
    for part in (train, validation, test):
        digest.update(f"/{len(part)}/".encode() + part.astype("<i8").tobytes())
    mean, std = channel_statistics(own.pixels, own.sizes)
    parts = (own, held, tested if data.test is None else data.test)
    split_hash = digest.hexdigest()[:16]
    return Splits(*parts, mean, std, len(counts), split_hash, copies, data.class_names)


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


def whole_groups(grouped: Grouped, share: float, *, seed: int) -> NDArray[np.bool_]:
    """Returns which images are in the groups that are taken, as near to `share` of all as can be.

    None are for a share of 0. A group counts as one of the class that most of its images are of.
    Within each class groups are in random order; with n images in the class, b of them in groups
    before and m in its own, a group is at (b + m / 2) / n. Those at the lowest places are taken: at
    least one of all groups, and all but one at most.

    Raises: DataError if all images are in one group.
    """
    groups, number = np.unique(grouped.groups, return_inverse=True)
    if not share:
        return np.zeros(len(number), np.bool_)
    if len(groups) < 2:
        raise DataError(
            "Images must be in two groups or more to set a part of them aside, but all"
            f" {len(number)} that are left are in one. Add groups, or bring the parts yourself."
        )
    own = main_classes(grouped.labels)
    pairs, counts = np.unique(number * (own.max() + 1) + own, return_counts=True)
    group_of_pair, stratum_of_pair = np.divmod(pairs, own.max() + 1)
    by_count = np.lexsort((counts, group_of_pair))
    stratum = stratum_of_pair[by_count[np.cumsum(np.bincount(group_of_pair)) - 1]]
    sizes = np.bincount(number)
    luck = randomness.permutation(seed, count=len(groups))
    order = np.lexsort((luck, stratum))
    totals = np.bincount(stratum, weights=sizes)
    before = np.cumsum(sizes[order]) - sizes[order] / 2
    first = (np.cumsum(totals) - totals)[stratum[order]]
    order = order[np.lexsort((luck[order], (before - first) / totals[stratum[order]]))]
    distance = abs(np.cumsum(sizes[order])[:-1] - share * len(number))
    return np.isin(number, order[: int(distance.argmin()) + 1])


def channel_statistics(
    pixels: Pixels, sizes: Indices | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and (population) standard deviation of each channel of (N, H, W, C), in [0, 1].

    Of images of `sizes` (N, 2), what they leave of their boxes, which is 0, does not count. Above
    1 GiB they are those of 10,000 images, evenly spaced, and of 1,000 that are stored encoded.

    Raises: DataError if a channel has the same value everywhere: it cannot be normalised.
    """
    is_encoded = isinstance(pixels, EncodedRows)
    most = SAMPLED_ENCODED if is_encoded else SAMPLED
    if len(pixels) > most and (is_encoded or math.prod(pixels.shape) > MOST_COPIED_BYTES):
        rows = np.arange(most) * len(pixels) // most
        sizes = None if sizes is None else sizes[rows]
        pixels = _picked(pixels, rows)
    count = math.prod(pixels.shape[:-1])
    if sizes is not None:
        count = int(sizes.prod(axis=1).sum())
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
    for part, samples in (("train", split.train_samples), ("validation", split.validation_samples)):
        if samples is not None and samples > (most := getattr(whole, part)):
            path = f"split.{part}_samples"
            yield Problem(path=path, must=f"must be at most {most}", given=str(samples))


def _cut_groups(counts: Counts, grouped: Grouped, split: SplitConfig) -> list[Indices]:
    """Returns the indices of what is set aside, for test and validation part, and of the rest."""
    count = counts.train - counts.validation
    rows = np.arange(count)
    both = np.intersect1d(grouped.groups[:count], grouped.groups[count:])
    if len(both):
        where = int(np.argmax(grouped.groups == both[0]))
        raise DataError(
            "No group may be in two parts, but that of training image"
            f" {where} has images in the validation part, too. Move them into one."
        )
    parts = []
    test_frac = split.test_frac if counts.test is None else 0.0
    for share in (test_frac, 0.0 if counts.validation else split.validation_frac):
        left = Grouped(grouped.labels[rows], grouped.groups[rows])
        taken = whole_groups(left, share, seed=split.seed)
        parts.append(rows[taken])
        rows = rows[~taken]
    return [*parts, rows]


def _choose(
    data: PreparedData, split: SplitConfig, counts: Counts, sizes: SplitSizes
) -> list[Indices]:
    """Returns the indices of training, validation and (if it is cut off here) test part, sorted."""
    count = counts.train - counts.validation
    order = randomness.permutation(split.seed, count=count)
    if counts.grouped is not None:
        cut = _cut_groups(counts, counts.grouped, split)
        test, validation, classes = (_by_class(data, order[np.isin(order, rows)]) for rows in cut)
    else:
        num_test = sizes.test if counts.test is None else 0
        test, classes = _take(_by_class(data, order), num_test)
        num_taken = 0 if counts.validation else _share(split.validation_frac, count - num_test)
        validation, classes = _take(classes, num_taken)
    if counts.validation:
        brought = randomness.permutation(split.seed, count=counts.validation)
        validation = _by_class(data, count + brought)
    if split.validation_samples is not None:
        validation, _ = _take(validation, sizes.validation)
    train = classes if split.train_samples is None else _take_train(classes, split, sizes.train)
    return [np.sort(np.concatenate(part)) for part in (train, validation, test)]


def _by_class(data: PreparedData, order: Indices) -> list[Indices]:
    labels = main_classes(data.train.labels)[order]
    num_classes = len(data.class_names) + (data.train.labels.ndim == 2)
    counts = np.bincount(labels, minlength=num_classes)
    return np.split(order[np.argsort(labels, kind="stable")], np.cumsum(counts)[:-1])


def _take(classes: list[Indices], total: int) -> tuple[list[Indices], list[Indices]]:
    numbers = quotas(np.array([len(members) for members in classes]), total)
    cut = [np.split(members, [n]) for members, n in zip(classes, numbers, strict=True)]
    return [taken for taken, _ in cut], [left for _, left in cut]


def _take_train(classes: list[Indices], split: SplitConfig, total: int) -> list[Indices]:
    if split.long_tail is None:
        return _take(classes, total)[0]
    numbers = long_tail(len(classes), total, ratio=split.long_tail)
    for number, (members, wanted) in enumerate(zip(classes, numbers, strict=True)):
        if wanted > len(members):
            has = f"must leave class {number} at most the {len(members)} images that it has"
            must = f"{has}, but long_tail={split.long_tail} gives it {wanted}"
            raise ConfigError.of("split.train_samples", must, given=str(split.train_samples))
    return [members[:n] for members, n in zip(classes, numbers, strict=True)]


def _rows(images: Images, indices: Indices) -> Images:
    """Returns the images `indices`: a copy, or left where they are if they are many and mapped."""
    pixels, labels = images.pixels, images.labels[indices]
    sizes = None if images.sizes is None else images.sizes[indices]
    num_bytes = len(indices) * math.prod(pixels.shape[1:])
    if isinstance(pixels, np.ndarray) and num_bytes <= MOST_COPIED_BYTES:
        return Images(pixels.take(indices, axis=0), labels, sizes)
    return Images(_picked(pixels, indices), labels, sizes)


def _picked(pixels: Pixels, rows: Indices) -> Pixels:
    if not isinstance(pixels, np.ndarray):
        return pixels.take(rows)
    return pixels.take(rows, axis=0) if file_map(pixels) is None else MappedRows(pixels, rows)
