import json
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.data.files import encode, write_noise, write_parquet

from tune_speed.core.errors import DataError, StorageError
from tune_speed.data import cache, entries
from tune_speed.data.base import Images
from tune_speed.data.cache import prepare
from tune_speed.data.datasets import decoding
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.split import SplitConfig, in_words, make_splits
from tune_speed.runtime.file_lock import file_lock

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def dataset(tmp_path: Path, random_pixels: Callable[..., np.ndarray]) -> ImageParquet:
    images = [encode(pixels) for pixels in random_pixels(40, 4, 4, 3)]
    train = write_parquet(tmp_path / "train.parquet", images[:30], [0, 1, 2] * 10)
    test = write_parquet(tmp_path / "test.parquet", images[30:], [0, 1] * 5)
    return ImageParquet(train=str(train), test=str(test))


class Count:
    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        self.last = (done, total)


def equal(first: Images, second: Images) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def only_entry(cache: Path) -> Path:
    (entry,) = (path for path in cache.iterdir() if path.is_dir())
    return entry


def test_the_second_time_nothing_is_decoded(tmp_path: Path, dataset: ImageParquet) -> None:
    first, second = Count(), Count()
    fresh = prepare(dataset, cache_dir=tmp_path / "c", on_progress=first)
    cached = prepare(dataset, cache_dir=tmp_path / "c", on_progress=second)
    assert first.last == (40, 40) and second.last is None
    decoded = dataset.decode(download=False, on_progress=Count())
    assert decoded.test and fresh.test and cached.test
    for data in (fresh, cached):
        assert equal(data.train, decoded.train) and equal(data.test, decoded.test)
        assert data.class_names == decoded.class_names
    assert fresh.data_hash == cached.data_hash and len(fresh.data_hash) == 16


def test_pixels_are_mapped_and_read_only(tmp_path: Path) -> None:
    pixels = prepare(Digits(), cache_dir=tmp_path).train.pixels
    assert isinstance(pixels.base, np.memmap) and not pixels.flags.writeable


def test_hash_follows_every_pixel_label_and_name(tmp_path, random_pixels):
    pixels, labels = random_pixels(4, 2, 2, 3), [0, 1, 1, 0]
    other = pixels.copy()
    other[3, 1, 1, 2] ^= 1
    hashes = set()
    for i, (images, marks, names) in enumerate(
        [
            (pixels, labels, ["a", "b"]),
            (other, labels, ["a", "b"]),
            (pixels, [0, 1, 1, 1], ["a", "b"]),
            (pixels, labels, ["a", "c"]),
        ]
    ):
        path = write_parquet(tmp_path / f"{i}.parquet", [*map(encode, images)], marks, names=names)
        hashes.add(prepare(ImageParquet(train=str(path)), cache_dir=tmp_path / "c").data_hash)
    assert len(hashes) == 4


def test_hash_does_not_depend_on_the_place(tmp_path: Path, dataset: ImageParquet) -> None:
    shutil.copy(dataset.train, tmp_path / "moved.parquet")
    moved = dataset.model_copy(update={"train": str(tmp_path / "moved.parquet")})
    hashes = {prepare(d, cache_dir=tmp_path / "c").data_hash for d in (dataset, moved)}
    assert len(hashes) == 1


def test_changed_source_is_decoded_again_and_the_old_entry_goes(tmp_path, dataset, random_pixels):
    old = prepare(dataset, cache_dir=tmp_path / "c")
    before = only_entry(tmp_path / "c")
    pixels = random_pixels(6, 4, 4, 3)
    write_parquet(Path(dataset.train), [*map(encode, pixels)], [0, 1] * 3)
    new = prepare(dataset, cache_dir=tmp_path / "c")
    assert np.array_equal(new.train.pixels, pixels) and new.data_hash != old.data_hash
    assert only_entry(tmp_path / "c") != before
    assert len(old.train.pixels) == 30 and old.train.pixels.sum() > 0  # still mapped


def test_settings_have_entries_of_their_own(tmp_path: Path) -> None:
    shapes = [prepare(Digits(scale=s), cache_dir=tmp_path).train.pixels.shape for s in (1, 2, 1)]
    assert shapes == [(1797, 8, 8, 1), (1797, 16, 16, 1), (1797, 8, 8, 1)]


def damage_truncate(entry: Path) -> None:
    os.truncate(entry / "train_pixels.npy", 200)


def damage_one_byte(entry: Path) -> None:
    content = bytearray((entry / "train_pixels.npy").read_bytes())
    content[-1] ^= 1
    (entry / "train_pixels.npy").write_bytes(content)


def damage_header(entry: Path) -> None:
    content = (entry / "train_labels.npy").read_bytes()
    (entry / "train_labels.npy").write_bytes(content.replace(b"NUMPY", b"numpy"))


def damage_missing_array(entry: Path) -> None:
    (entry / "test_labels.npy").unlink()


def damage_missing_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


def damage_half_meta(entry: Path) -> None:
    os.truncate(entry / "meta.json", 50)


def damage_class_names(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | {"class_names": ["x", "y", "z"]}))


@pytest.mark.parametrize(
    "damage", [value for name, value in globals().items() if name.startswith("damage_")]
)
def test_damaged_entry_is_found_and_built_again(tmp_path, dataset, caplog, damage):
    fresh = prepare(dataset, cache_dir=tmp_path / "c")
    damage(only_entry(tmp_path / "c"))
    progress = Count()
    again = prepare(dataset, cache_dir=tmp_path / "c", on_progress=progress)
    assert progress.last == (40, 40) and "is damaged and is decoded again" in caplog.text
    decoded = dataset.decode(download=False, on_progress=Count())
    assert equal(again.train, decoded.train) and again.class_names == ("0", "1", "2")
    assert again.data_hash == fresh.data_hash


def test_damage_in_a_large_array_is_found_by_its_time_of_change(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(entries, "ALWAYS_CHECKED_BYTES", 0)
    fresh = prepare(dataset, cache_dir=tmp_path / "c").train.pixels.copy()
    damage_one_byte(only_entry(tmp_path / "c"))
    assert np.array_equal(prepare(dataset, cache_dir=tmp_path / "c").train.pixels, fresh)


def test_entry_that_was_only_touched_stays(tmp_path: Path, dataset: ImageParquet) -> None:
    prepare(dataset, cache_dir=tmp_path / "c")
    os.utime(only_entry(tmp_path / "c") / "train_pixels.npy", (1, 1))
    progress = Count()
    prepare(dataset, cache_dir=tmp_path / "c", on_progress=progress)
    assert progress.last is None


def prepare_together(dataset: ImageParquet, cache: Path, barrier: Barrier, reply: Path) -> None:
    progress = Count()
    barrier.wait(60)
    data = prepare(dataset, cache_dir=cache, on_progress=progress)
    reply.write_text(f"{progress.last is not None} {data.data_hash} {data.train.pixels.sum()}")


def test_processes_that_start_together_decode_once(tmp_path: Path, dataset: ImageParquet) -> None:
    barrier = SPAWN.Barrier(3)
    replies = [tmp_path / f"reply{i}" for i in range(3)]
    processes = [
        SPAWN.Process(target=prepare_together, args=(dataset, tmp_path / "c", barrier, reply))
        for reply in replies[1:]
    ]
    for process in processes:
        process.start()
    prepare_together(dataset, tmp_path / "c", barrier, replies[0])
    for process in processes:
        process.join(60)
    answers = [reply.read_text().split() for reply in replies]
    assert sorted(answer[0] for answer in answers) == ["False", "False", "True"]
    expected = prepare(dataset, cache_dir=tmp_path / "c")
    assert {tuple(answer[1:]) for answer in answers} == {
        (expected.data_hash, str(expected.train.pixels.sum()))
    }


def prepare_and_hang(dataset: ImageParquet, cache: Path) -> None:
    os.fsync = lambda file: time.sleep(600)  # in mid-write, with the lock held
    prepare(dataset, cache_dir=cache)


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path, dataset: ImageParquet) -> None:
    victim = SPAWN.Process(target=prepare_and_hang, args=(dataset, tmp_path / "c"))
    victim.start()
    deadline = time.monotonic() + 30
    while not list((tmp_path / "c").glob("*.partial/*.npy")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(10)
    data = prepare(dataset, cache_dir=tmp_path / "c", lock_wait_s=5)
    assert len(data.train.labels) == 30
    assert not list((tmp_path / "c").glob("*.partial")) and only_entry(tmp_path / "c")


@pytest.mark.parametrize(("days", "is_kept"), [(6, True), (8, False)])
@pytest.mark.parametrize("name", ["folder-00.partial", "folder-00-11.tmp-x"])
def test_what_any_set_left_a_week_ago_is_removed_even_where_decoding_fails(
    tmp_path, dataset, name, days, is_kept
):
    leftover = tmp_path / "c" / name
    leftover.mkdir(parents=True)
    (leftover / "train_pixels.npy").touch()
    then = time.time() - days * 86_400
    os.utime(leftover, (then, then))
    write_parquet(Path(dataset.train), [b"junk"] * 3, [0, 1, 2])
    with pytest.raises(DataError, match="cannot be decoded"):
        prepare(dataset, cache_dir=tmp_path / "c")
    assert leftover.exists() == is_kept


def test_a_build_lists_the_files_once_for_its_name_and_once_to_read_them(
    tmp_path, photos, monkeypatch
):
    calls: list[str] = []
    for name in ("sources", "listing"):
        method = getattr(ImageFolder, name)
        monkeypatch.setattr(
            ImageFolder, name, lambda self, n=name, do=method: calls.append(n) or do(self)
        )
    prepare(ImageFolder(root=str(photos), store_size=8), cache_dir=tmp_path / "c")
    assert calls == ["sources", "listing"]


def prepare_photos(root: Path, cache: Path, log: Path) -> None:
    decoding.SERIAL_IMAGES, decoding.SAVE_EVERY_S = 0, 0.0

    def progressed(done: int, total: int) -> None:
        log.write_text(str(done))
        # Slow enough for the parent to catch it in mid-build.
        time.sleep(0.3 if done else 0)

    prepare(ImageFolder(root=str(root), store_size=8), cache_dir=cache, on_progress=progressed)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_noise(tmp_path / "photos", {"train": 300, "test": 40}, size=12)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_stopped_is_resumed_and_leaves_no_process(tmp_path, photos, number):
    log, cache_dir = tmp_path / "log", tmp_path / "c"
    victim = SPAWN.Process(target=prepare_photos, args=(photos, cache_dir, log), daemon=True)
    victim.start()
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_text() in ("", "0", "64"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = psutil.Process(victim.pid).children(recursive=True)
    assert victim.pid is not None
    os.kill(victim.pid, number)
    victim.join(20)
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    seen: list[int] = []
    dataset = ImageFolder(root=str(photos), store_size=8)
    data = prepare(dataset, cache_dir=cache_dir, on_progress=lambda done, total: seen.append(done))
    first = next(done for done in seen if done)
    assert first >= 64 and seen[-1] == 340
    fresh = prepare(dataset, cache_dir=tmp_path / "fresh")
    assert data.data_hash == fresh.data_hash and equal(data.train[:2], fresh.train[:2])


def test_image_size_has_the_hash_of_earlier_versions(tmp_path: Path) -> None:
    root = write_noise(tmp_path / "d", {"train": 12, "test": 4}, size=9)
    dataset = ImageFolder(root=str(root), image_size=6)
    assert prepare(dataset, cache_dir=tmp_path / "c").data_hash == "ae1775ec39c91d80"


@pytest.mark.parametrize("kind", ["pixels", "jpeg"])
def test_entries_of_several_sizes_are_cut_without_their_padding(tmp_path, kind) -> None:
    for number in range(24):
        image = np.full((8 + number % 4, 9, 3), 100 + number, np.uint8)
        path = tmp_path / "d" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(image, kind="jpeg"))
    dataset = ImageFolder(root=str(tmp_path / "d"), store_size=16, store=kind)
    data = prepare(dataset, cache_dir=tmp_path / "c")
    splits = make_splits(data, SplitConfig(validation_frac=0.2))
    assert splits.train.sizes is not None
    images = zip(splits.train.pixels[:], splits.train.sizes, strict=True)
    values = np.concatenate([pixels[:h, :w].reshape(-1, 3) for pixels, (h, w) in images]) / 255
    assert splits.mean == pytest.approx(values.mean(axis=0))
    assert splits.std == pytest.approx(values.std(axis=0))


def test_of_many_files_only_folders_and_some_files_are_looked_at(tmp_path, photos, monkeypatch):
    monkeypatch.setattr(cache, "MANY_FILES", 100)
    dataset = ImageFolder(root=str(photos), store_size=8)
    empty = photos / "train" / "class 0" / "more"
    empty.mkdir()
    first = prepare(dataset, cache_dir=tmp_path / "c")
    monkeypatch.setattr(ImageFolder, "sources", lambda self: pytest.fail("files are listed"))
    assert prepare(dataset, cache_dir=tmp_path / "c").data_hash == first.data_hash
    monkeypatch.undo()
    shutil.copy(photos / "train" / "class 1" / "1.png", empty / "new.png")
    assert len(prepare(dataset, cache_dir=tmp_path / "c").train.labels) == 301


def test_a_file_that_is_written_over_is_noticed_after_a_day(tmp_path, photos, monkeypatch):
    monkeypatch.setattr(cache, "MANY_FILES", 100)
    monkeypatch.setattr(cache, "SAMPLED_FILES", 1)
    dataset = ImageFolder(root=str(photos), store_size=8)
    first = prepare(dataset, cache_dir=tmp_path / "c").data_hash
    (photos / "train" / "class 1" / "99.png").write_bytes(encode(np.zeros((9, 9, 3), np.uint8)))
    assert prepare(dataset, cache_dir=tmp_path / "c").data_hash == first
    day = time.time() + 86_401
    monkeypatch.setattr(time, "time", lambda: day)
    assert prepare(dataset, cache_dir=tmp_path / "c").data_hash != first


def hold(lock: Path, is_held: Path, touches: int) -> None:
    with file_lock(lock, wait_s=1):
        is_held.touch()
        for _ in range(touches):
            time.sleep(0.5)
            os.utime(lock)
        time.sleep(60)


@pytest.mark.parametrize("touches", [0, 4])
def test_the_wait_for_another_process_ends_with_its_signs_of_life(tmp_path, touches) -> None:
    lock, is_held = tmp_path / "x.lock", tmp_path / "held"
    holder = SPAWN.Process(target=hold, args=(lock, is_held, touches), daemon=True)
    holder.start()
    while not is_held.exists():
        time.sleep(0.01)
    began = time.monotonic()
    message = f"process {holder.pid} holds it"
    with pytest.raises(StorageError, match=message), file_lock(lock, wait_s=1.2, is_renewed=True):
        pass
    assert time.monotonic() - began > (2.5 if touches else 1)
    holder.kill()


def test_truncated_file_is_told_by_its_size(tmp_path, dataset, caplog):
    prepare(dataset, cache_dir=tmp_path / "c")
    damage_truncate(only_entry(tmp_path / "c"))
    prepare(dataset, cache_dir=tmp_path / "c")
    assert "train_pixels.npy has 200 bytes, not 1568" in caplog.text


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_that_takes_no_more_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    message = f"{tmp_path / 'c'} must take the images as they are stored, but: "
    with largest_file(50_000), pytest.raises(StorageError, match=message):
        prepare(Digits(), cache_dir=tmp_path / "c")
    assert [path.suffix for path in (tmp_path / "c").iterdir()] == [".lock"]
    assert len(prepare(Digits(), cache_dir=tmp_path / "c").train.labels) == 1797


def test_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=rf"{tmp_path / 'file' / 'c'} must be writable"):
        prepare(Digits(), cache_dir=tmp_path / "file" / "c")


def test_entry_in_a_read_only_folder_is_read(tmp_path: Path) -> None:
    expected = prepare(Digits(), cache_dir=tmp_path / "c").data_hash
    # For root modes mean nothing, but it cannot take a lock either where its name is a folder.
    (lock,) = (tmp_path / "c").glob("*.lock")
    lock.unlink()
    lock.mkdir()
    (tmp_path / "c").chmod(0o555)
    assert prepare(Digits(), cache_dir=tmp_path / "c").data_hash == expected


def test_data_that_change_while_they_are_read_are_refused(tmp_path, dataset):
    def touch(done: int, total: int) -> None:
        os.utime(dataset.train, (done, done))

    with pytest.raises(DataError, match="must not change while they are read"):
        prepare(dataset, cache_dir=tmp_path / "c", on_progress=touch)


def test_parts_of_different_size_are_refused(tmp_path, random_pixels):
    files = [
        write_parquet(
            tmp_path / f"{size}.parquet", [*map(encode, random_pixels(2, size, size, 3))], [0, 1]
        )
        for size in (4, 5)
    ]
    dataset = ImageParquet(train=str(files[0]), test=str(files[1]))
    with pytest.raises(DataError, match=r"is 5x5 and the first is 4x4\. Set `store_size`"):
        prepare(dataset, cache_dir=tmp_path / "c")


def test_images_of_one_class_are_refused_by_its_name(tmp_path, random_pixels):
    images = [encode(pixels) for pixels in random_pixels(3, 4, 4, 3)]
    path = write_parquet(tmp_path / "a.parquet", images, [0, 0, 0], names=["cats"])
    with pytest.raises(DataError, match="one alone, `cats`"):
        prepare(ImageParquet(train=str(path)), cache_dir=tmp_path / "c")


def test_copies_of_training_images_are_counted_and_said(tmp_path, random_pixels):
    images = [encode(pixels) for pixels in random_pixels(20, 4, 4, 3)]
    train = write_parquet(tmp_path / "train.parquet", images, [0, 1] * 10)
    test = write_parquet(tmp_path / "test.parquet", images[:4], [0, 1] * 2)
    data = prepare(ImageParquet(train=str(train), test=str(test)), cache_dir=tmp_path / "c")
    splits = make_splits(data, SplitConfig(validation_frac=0.2))
    kept = {image.tobytes() for image in np.asarray(splits.train.pixels)}
    copies = sum(image.tobytes() in kept for image in np.asarray(splits.test.pixels))
    assert splits.copies == copies > 0
    counts, said = in_words(splits, data.class_names)
    assert "2 classes (0, 1); 16 training, 4 validation and 4 test images" in counts
    assert f"{copies} of the 8 validation and test images" in said


def test_what_is_known_of_digits_is_their_hash_of_ever(tmp_path: Path) -> None:
    data = prepare(Digits(), cache_dir=tmp_path)
    assert data.data_hash == "b601aeb0059b1376"
    assert make_splits(data, SplitConfig()).split_hash == "d9ff254a4c6c0bd7"
