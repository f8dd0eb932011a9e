from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data import LOADERS, randomness, split
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.base import Counts, Grouped, Images, MappedRows
from tune_speed.data.cache import PreparedData
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import LoaderConfig, Streaming
from tune_speed.data.loaders.resident import View, eval_batches
from tune_speed.data.orders import SampleOrder
from tune_speed.data.split import (
    SplitConfig,
    Splits,
    channel_statistics,
    long_tail,
    make_splits,
    quotas,
    split_sizes,
)

MakeData = Callable[..., PreparedData]


def numbered(num_images: int, num_classes: int, num_test: int | None = None) -> PreparedData:
    numbers = np.arange(num_images)
    pixels = np.stack([numbers % 256, numbers // 256 * 16 + numbers % 16, numbers % 7], axis=1)
    train = Images(pixels.astype(np.uint8).reshape(-1, 1, 1, 3), numbers % num_classes)
    test = None if num_test is None else Images(train.pixels[:num_test], train.labels[:num_test])
    return PreparedData(train, test, tuple(map(str, range(num_classes))), "cafe")


def numbers_of(images: Images) -> list[int]:
    pixels = images.pixels.reshape(-1, 3).astype(int)
    return [int(number) for number in pixels[:, 0] + 256 * (pixels[:, 1] // 16)]


def test_parts_are_disjoint_and_whole() -> None:
    splits = make_splits(numbered(1000, 10), SplitConfig())
    parts = [numbers_of(part) for part in splits[:3]]
    assert sorted(number for part in parts for number in part) == list(range(1000))
    assert [len(part) for part in parts] == [720, 80, 200]


def test_validation_images_may_be_trained_on_too() -> None:
    data, split = numbered(1000, 10), SplitConfig(seed=3, train_samples=300)
    apart, joined = (
        make_splits(data, split),
        make_splits(data, split, trained_on="train+validation"),
    )
    both = numbers_of(apart.train) + numbers_of(apart.validation)
    assert numbers_of(joined.train) == sorted(both) and len(both) == 380
    assert joined.train.labels.tolist() == [number % 10 for number in sorted(both)]
    assert numbers_of(joined.test) == numbers_of(apart.test)
    assert joined.mean == pytest.approx(joined.train.pixels.mean(axis=(0, 1, 2)) / 255)
    assert joined.split_hash != apart.split_hash


def test_labels_stay_with_their_images() -> None:
    for part in make_splits(numbered(1000, 10), SplitConfig())[:3]:
        assert part.labels.tolist() == [number % 10 for number in numbers_of(part)]


def test_each_class_keeps_its_share_to_within_one(make_data: MakeData) -> None:
    counts = np.array([500, 301, 77, 40, 13])
    splits = make_splits(make_data(counts), SplitConfig(validation_frac=0.3, test_frac=0.15))
    share_left = counts.astype(float)
    for part, fraction in ((splits.test, 0.15), (splits.validation, 0.3)):
        taken = np.bincount(part.labels, minlength=5)
        assert (abs(taken - fraction * share_left) < 1).all()
        share_left -= taken


def test_a_test_part_that_is_brought_is_kept(make_data: MakeData) -> None:
    data = make_data([50, 50], num_test=20)
    splits = make_splits(data, SplitConfig())
    assert splits.test is data.test
    assert len(splits.train.labels) == 90 and len(splits.validation.labels) == 10


def test_the_cut_is_the_same_for_ever() -> None:
    splits = make_splits(numbered(300, 3), SplitConfig(seed=5))
    assert splits.split_hash == "acc5171cc314aa7c"
    assert numbers_of(splits.validation)[:8] == [12, 14, 19, 31, 41, 47, 60, 71]


def test_hash_follows_seed_data_and_sizes() -> None:
    data = numbered(300, 3)
    configs = [SplitConfig(), SplitConfig(seed=1), SplitConfig(train_samples=30)]
    hashes = {make_splits(data, config).split_hash for config in configs}
    hashes.add(make_splits(data._replace(data_hash="beef"), SplitConfig()).split_hash)
    assert len(hashes) == 4
    assert make_splits(data, SplitConfig()).split_hash in hashes


def test_subsets_are_drawn_from_their_parts_in_proportion() -> None:
    data = numbered(1000, 10, num_test=10)
    whole = make_splits(data, SplitConfig(seed=2))
    some = make_splits(data, SplitConfig(seed=2, train_samples=50, validation_samples=20))
    assert set(numbers_of(some.train)) < set(numbers_of(whole.train))
    assert set(numbers_of(some.validation)) < set(numbers_of(whole.validation))
    assert np.bincount(some.train.labels).tolist() == [5] * 10
    assert np.bincount(some.validation.labels).tolist() == [2] * 10


@given(
    num_train=st.integers(40, 400),
    brings_test=st.booleans(),
    validation_frac=st.floats(0.05, 0.5),
    test_frac=st.floats(0.05, 0.5),
    num_classes=st.integers(1, 4),
)
def test_sizes_known_before_decoding_are_the_sizes_made(
    num_train: int, brings_test: bool, validation_frac: float, test_frac: float, num_classes: int
) -> None:
    data = numbered(num_train, num_classes, num_test=7 if brings_test else None)
    split = SplitConfig(validation_frac=validation_frac, test_frac=test_frac)
    sizes = split_sizes(Counts(num_train, 7 if brings_test else None), split)
    assert sizes == tuple(len(part.labels) for part in make_splits(data, split)[:3])
    assert sizes.train + sizes.validation + sizes.test == num_train + 7 * brings_test


def test_sizes_of_cifar10_are_45k_and_5k() -> None:
    assert split_sizes(Counts(50_000, 10_000), SplitConfig()) == (45_000, 5_000, 10_000)
    assert split_sizes(Counts(50_000, 10_000), SplitConfig(train_samples=64)).train == 64


@pytest.mark.parametrize("field", ["train_samples", "validation_samples"])
def test_subset_larger_than_its_part_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"split\.{field}: must be at most (45000|5000).* 45001"):
        split_sizes(Counts(50_000, 10_000), SplitConfig(**{field: 45_001}))


def test_part_without_an_image_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"split: .*=0.001"):
        split_sizes(Counts(100, 10), SplitConfig(validation_frac=0.001))


def test_class_without_training_image_is_named(make_data: MakeData) -> None:
    with pytest.raises(DataError, match=r"class `2` has none of its 1 there .train_samples=4"):
        make_splits(make_data([50, 50, 1], num_test=3), SplitConfig(train_samples=4))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any), st.floats(0, 1))
def test_quotas_sum_up_and_keep_shares_to_within_one(counts: list[int], share: float) -> None:
    total = int(share * sum(counts))
    taken = quotas(np.array(counts), total)
    assert taken.sum() == total
    assert (taken <= counts).all() and (taken >= 0).all()
    assert (abs(taken - np.array(counts) * total / sum(counts)) <= 1).all()


def test_quotas_leave_small_classes_their_last_image() -> None:
    assert quotas(np.array([1, 12, 12]), 13).tolist() == [0, 7, 6]


def test_statistics_are_those_of_the_training_part(make_data: MakeData) -> None:
    splits = make_splits(make_data([150, 171], size=5), SplitConfig())
    exact = splits.train.pixels.astype(np.longdouble) / 255
    assert np.allclose(splits.mean, exact.mean(axis=(0, 1, 2)).astype(float), rtol=1e-15)
    assert np.allclose(splits.std, exact.std(axis=(0, 1, 2)).astype(float), rtol=1e-14)


def test_channel_that_never_varies_is_refused(random_pixels: Callable[..., np.ndarray]) -> None:
    pixels = random_pixels(5, 4, 4, 3)
    pixels[..., 1] = 9
    with pytest.raises(DataError, match="channel 1 is 9 in each pixel"):
        channel_statistics(pixels)


def test_long_tail_of_cifar10_is_the_published_one() -> None:
    expected = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    counts = long_tail(10, 12_406, ratio=0.01)
    assert counts.sum() == 12_406
    assert abs(counts - expected).max() <= 1


def test_long_tail_thins_the_training_part_alone(make_data: MakeData) -> None:
    data = make_data([200, 200, 200], num_test=9)
    plain = make_splits(data, SplitConfig())
    tailed = make_splits(data, SplitConfig(train_samples=210, long_tail=0.25))
    assert np.bincount(tailed.train.labels).tolist() == [120, 60, 30]
    assert (tailed.validation.pixels == plain.validation.pixels).all()
    assert tailed.split_hash != plain.split_hash
    assert split_sizes(Counts(600, 9), SplitConfig(train_samples=210, long_tail=0.25)).train == 210


def test_long_tail_of_ratio_one_is_balanced() -> None:
    assert long_tail(4, 10, ratio=1.0).tolist() == [3, 3, 2, 2]
    assert long_tail(1, 7, ratio=0.1).tolist() == [7]


def test_long_tail_that_a_class_is_too_small_for_is_refused(make_data: MakeData) -> None:
    with pytest.raises(ConfigError, match=r"split\.train_samples: .* 0 .* 90 .* 120"):
        make_splits(
            make_data([100] * 3, num_test=9), SplitConfig(train_samples=210, long_tail=0.25)
        )


def test_long_tail_needs_a_size() -> None:
    with pytest.raises(ValueError, match="train_samples must be given with long_tail"):
        SplitConfig(long_tail=0.1)


def test_a_split_without_long_tail_has_the_identity_that_it_always_had() -> None:
    assert "long_tail" not in SplitConfig().model_dump(mode="json")
    assert SplitConfig(train_samples=9, long_tail=0.1).model_dump()["long_tail"] == 0.1


def patients(seed: int, *, num_groups: int = 60, num_classes: int = 3) -> PreparedData:
    """Returns groups of 1 to 9 images in mixed order, most of them of one class alone."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(num_groups), rng.integers(2, 10, num_groups)))
    labels = np.where(rng.random(len(groups)) < 0.9, groups, groups + 1) % num_classes
    data = numbered(len(groups), num_classes)
    return data._replace(train=data.train._replace(labels=labels), groups=groups)


@given(
    seed=st.integers(0, 1000),
    num_groups=st.integers(4, 40),
    share=st.floats(0.05, 0.4),
    brings_test=st.booleans(),
)
def test_no_group_is_in_two_parts_and_sizes_are_known_to_within_a_group(
    seed: int, num_groups: int, share: float, brings_test: bool
) -> None:
    data = patients(seed, num_groups=num_groups, num_classes=1)
    num_test = 7 if brings_test else None
    test = Images(data.train.pixels[:1], data.train.labels[:1]) if brings_test else None
    data, split = data._replace(test=test), SplitConfig(validation_frac=share, test_frac=share)
    assert data.groups is not None
    splits = make_splits(data, split)
    parts = [numbers_of(part) for part in splits[: 2 if brings_test else 3]]
    assert sorted(number for part in parts for number in part) == list(range(len(data.groups)))
    groups = [set(data.groups[part]) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == num_groups
    grouped = Grouped(data.train.labels, data.groups)
    sizes = split_sizes(Counts(len(data.groups), num_test, grouped=grouped), split)
    assert sizes[:2] == tuple(map(len, parts[:2]))
    whole = len(data.groups) - (0 if brings_test else sizes.test)
    assert abs(sizes.validation - share * whole) <= np.bincount(data.groups).max()


def test_classes_keep_their_shares_as_well_as_whole_groups_allow() -> None:
    data = patients(0, num_groups=600)
    splits = make_splits(data, SplitConfig(validation_frac=0.25, test_frac=0.2))
    whole = np.bincount(data.train.labels) / len(data.train.labels)
    for part in splits[:3]:
        assert abs(np.bincount(part.labels) / len(part.labels) - whole).max() < 0.02


def test_groups_that_cannot_be_kept_apart_are_refused() -> None:
    data = patients(0)
    with pytest.raises(DataError, match="all 36 that are left are in one"):
        make_splits(numbered(36, 2)._replace(groups=np.zeros(36, np.int64)), SplitConfig())
    with pytest.raises(DataError, match="No group may be in two parts"):
        make_splits(data._replace(num_validation=20), SplitConfig())


def several(num_images: int) -> PreparedData:
    """Returns images of 4 classes, each rarer by half than the one before; every ninth has none."""
    rng = np.random.default_rng(4)
    labels = (rng.random((num_images, 4)) < [0.8, 0.4, 0.2, 0.1]).astype(np.float32)
    labels[::9] = 0
    data = numbered(num_images, 4)
    return data._replace(train=data.train._replace(labels=labels))


def test_images_of_several_classes_are_cut_by_the_rarest() -> None:
    data, split = several(900), SplitConfig(validation_frac=0.25, test_frac=0.2)
    splits = make_splits(data, split)
    parts = [numbers_of(part) for part in splits[:3]]
    assert sorted(number for part in parts for number in part) == list(range(900))
    assert tuple(map(len, parts)) == split_sizes(Counts(900, None), split)
    labels = data.train.labels
    assert all(np.array_equal(p.labels, labels[n]) for p, n in zip(splits[:3], parts, strict=True))
    for rarest, rows in ((3, labels[:, 3] > 0), (None, ~labels.any(axis=1))):
        taken = [rows[part].sum() / rows.sum() for part in parts]
        assert taken == pytest.approx([0.6, 0.2, 0.2], abs=1.5 / rows.sum()), rarest
    assert splits.num_classes == 4 and len(make_splits(data, SplitConfig(train_samples=90))[0][1])


def test_several_classes_an_image_refuse_what_they_cannot_have() -> None:
    data = several(90)
    data.train.labels[:, 2] = 0
    with pytest.raises(DataError, match="class `2` has none of its 0"):
        make_splits(data, SplitConfig())
    with pytest.raises(ConfigError, match=r"split\.long_tail"):
        make_splits(data, SplitConfig(train_samples=9, long_tail=0.1))


CPU = torch.device("cpu")
CONFIGS = {name: kind() for name, kind in LOADERS.items()} | {
    "dataloader, 2 workers": Streaming(workers=2)
}
SPLIT = SplitConfig(validation_frac=0.2)


@pytest.fixture
def data(random_pixels: Callable[..., np.ndarray], tmp_path: Path) -> PreparedData:
    np.save(tmp_path / "pixels.npy", random_pixels(90, 6, 7, 3))
    pixels = np.asarray(np.load(tmp_path / "pixels.npy", mmap_mode="r"))
    return PreparedData(Images(pixels, np.arange(90) % 3), None, ("a", "b", "c"), "cafe")


@pytest.fixture
def parts(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> tuple[Splits, Splits]:
    copied = make_splits(data, SPLIT)
    monkeypatch.setattr(split, "MOST_COPIED_BYTES", 0)
    return make_splits(data, SPLIT), copied


def batches_of(config: LoaderConfig, splits: Splits) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order, changes = SampleOrder(len(splits.train.labels), 8, 3), Augmentation(pad=2, flip="random")
    loader = config.open(splits.train, Batching(order, splits.mean, splits.std, CPU, changes))
    for epoch in range(2):
        yield from loader.epoch(epoch)
    loader.close()


def test_large_part_is_left_in_the_file_and_a_small_one_is_copied(parts):
    mapped, copied = parts
    assert isinstance(mapped.train.pixels, MappedRows)
    assert isinstance(copied.train.pixels, np.ndarray)
    assert isinstance(mapped.train.pixels.whole.base, np.memmap)


def test_set_that_is_no_file_is_copied(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MOST_COPIED_BYTES", 0)
    in_memory = data._replace(train=data.train._replace(pixels=np.array(data.train.pixels)))
    assert isinstance(make_splits(in_memory, SPLIT).train.pixels, np.ndarray)


def test_what_is_known_of_a_part_is_the_same(parts: tuple[Splits, Splits]) -> None:
    mapped, copied = parts
    assert mapped[3:] == copied[3:]  # mean, standard deviation, classes and hash
    for ours, theirs in zip(mapped[:3], copied[:3], strict=True):
        assert ours.pixels.shape == theirs.pixels.shape
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.pixels[:], theirs.pixels)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_batches_are_the_same_bit_by_bit(config, parts):
    mapped, copied = parts
    expected = list(batches_of(LOADERS["resident"](), copied))
    for (images, labels), (images_e, labels_e) in zip(
        batches_of(config, mapped), expected, strict=True
    ):
        assert torch.equal(images, images_e) and torch.equal(labels, labels_e)


def test_evaluation_sees_the_same_images(parts: tuple[Splits, Splits]) -> None:
    ours, theirs = (
        [
            batch
            for batch, _ in eval_batches(
                splits.validation,
                View(splits.mean, splits.std, channels_last=False),
                batch_size=5,
                device=CPU,
            )
        ]
        for splits in parts
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_permutation_is_the_same_for_ever() -> None:
    assert randomness.permutation(1, 2, count=10).tolist() == [7, 2, 4, 3, 5, 8, 9, 1, 6, 0]


def test_permutation_sorts_the_numbers_by_their_random_words() -> None:
    words = randomness.bits(9, count=500)
    expected = sorted(range(500), key=lambda number: int(words[number]))
    assert randomness.permutation(9, count=500).tolist() == expected


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(0, 300))
def test_permutation_holds_every_number_once(seed: int, count: int) -> None:
    assert sorted(randomness.permutation(seed, count=count)) == list(range(count))


@pytest.mark.parametrize("other", [(2,), (1, 0), (1, 0, 0), (0, 1), (2**32 + 1,), (1 + 2**62,)])
def test_different_keys_give_different_streams(other: tuple[int, ...]) -> None:
    ours, theirs = (randomness.bits(*key, count=8) for key in ((1,), other))
    assert not np.intersect1d(ours, theirs).size


def test_permutation_favours_no_order() -> None:
    orders = [tuple(randomness.permutation(seed, count=3)) for seed in range(3000)]
    seen, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(seen) == 6
    # Chi-square with 5 degrees of freedom: above 20.5 with probability 0.001.
    assert ((counts - 500) ** 2 / 500).sum() < 20.5


@pytest.mark.parametrize("limit", [1, 2, 9, 2**32])
def test_below_stays_below_and_is_uniform(limit: int) -> None:
    values = randomness.below(limit, 5, count=20_000)
    assert values.min() >= 0 and values.max() < limit
    # The mean of n uniform values strays by limit / sqrt(12 n); 4 of these.
    assert abs(values.mean() - (limit - 1) / 2) <= 4 * limit / (12 * 20_000) ** 0.5
