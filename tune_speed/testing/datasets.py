"""What holds for every data set. Each contract decodes it: give a small one as `fields`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tune_speed.data.base import DatasetConfig, DecodedData, Images, whole_of
from tune_speed.data.cache import PreparedData, prepare
from tune_speed.data.split import SplitConfig, make_splits
from tune_speed.testing.entry import ConfigContracts, Seen


class DatasetContracts(ConfigContracts[DatasetConfig]):
    """What holds for every data set."""

    table = "DATASETS"

    def _decode(self) -> tuple[DecodedData, list[tuple[int, int]]]:
        calls: list[tuple[int, int]] = []
        data = self._config().decode(
            download=True, on_progress=lambda done, total: calls.append((done, total))
        )
        return data, calls

    def decode_returns_images_and_labels_as_arrays(self) -> Seen:
        """Return DecodedData(train, test or None, class_names), of Images(pixels, labels)."""
        data, _ = self._decode()
        if not isinstance(data, DecodedData):
            yield f"it returned a {type(data).__name__}"
        for name, part in _parts_of(data).items():
            if not isinstance(part, Images) or not isinstance(part.labels, np.ndarray):
                kinds = [type(each).__name__ for each in part[:2]]
                yield f"`{name}` is a {type(part).__name__} of {', '.join(kinds)}"

    def images_are_uint8_in_the_order_n_h_w_c(self) -> Seen:
        """Do not normalise; make grey `pixels[..., None]`, channels the last axis, all one size."""
        parts = _parts_of(self._decode()[0])
        for name, (pixels, *_) in parts.items():
            dtype, shape = whole_of(pixels)[0].dtype, pixels.shape
            if dtype != np.uint8 or len(shape) != 4 or shape[-1] not in (1, 3, 4):
                yield f"those of `{name}` are {dtype} of the shape {shape}"
        if len(sizes := {pixels.shape[1:] for pixels, *_ in parts.values()}) != 1:
            yield f"they have the sizes {sizes}"

    def labels_are_numbers_of_its_classes(self) -> Seen:
        """Number classes from 0, as int64, one an image; or give 0 and 1 a class, as float32."""
        data, _ = self._decode()
        num_classes = len(data.class_names)
        for name, (pixels, labels, _) in _parts_of(data).items():
            values = np.unique(labels)
            if labels.dtype == np.float32 and labels.shape == (len(pixels), num_classes):
                is_sound = bool(np.isin(values, (0, 1)).all())
            else:
                is_sound = labels.dtype == np.int64 and labels.shape == (len(pixels),)
                is_sound &= len(values) > 0 and values[0] >= 0 and values[-1] < num_classes
            if not is_sound:
                form = f"{labels.dtype} of the shape {labels.shape}, {values[:1]} to {values[-1:]}"
                yield f"those of `{name}`, of {num_classes} classes, are {form}"

    def sizes_known_before_decoding_are_those_decoded(self) -> Seen:
        """Count in `num_train` and `num_test` what will be decoded; None without a test part."""
        said = {"train": self._config().num_train(), "test": self._config().num_test()}
        parts = _parts_of(self._decode()[0])
        held = {name: len(parts[name].labels) if name in parts else None for name in said}
        if said != held:
            yield f"they say {said}, and {held} were decoded"

    def decoding_twice_gives_the_same_data(self) -> Seen:
        """Sort file names, and draw nothing, or by a seed that is a field."""
        hashes = []
        for _ in range(2):
            # A cache of its own each time: a second look into the first would decode nothing.
            with self._prepared() as data:
                hashes.append(data.data_hash)
        if hashes[0] != hashes[1]:
            yield f"the hashes of pixels and labels are {' and '.join(hashes)}"

    def sources_are_files(self) -> Seen:
        """Return pathlib.Path of each file that is read (no folders); [] if it reads none."""
        # Sources that are downloaded are there only now.
        self._decode()
        if missing := [str(path) for path in self._config().sources() if not path.is_file()]:
            yield f"there is no file {', '.join(missing[:3])}"

    def progress_ends_with_every_image(self) -> Seen:
        """Call `on_progress(images_done, images_total)` now and then, and at the end."""
        data, calls = self._decode()
        total = sum(len(part.labels) for part in _parts_of(data).values())
        if calls[-1:] != [(total, total)]:
            yield f"its last call was {calls[-1] if calls else 'never'}, not ({total}, {total})"

    def data_can_be_split_for_training(self) -> Seen:
        """Let every class have some images to set aside, of one shape (height, width, channels)."""
        with self._prepared() as data:
            splits = make_splits(data, SplitConfig(validation_frac=0.25))
        channels = splits.train.pixels.shape[-1]
        if not len(splits.mean) == len(splits.std) == channels:
            yield f"there are {len(splits.mean)} means for {channels} channels"

    @contextmanager
    def _prepared(self) -> Iterator[PreparedData]:
        with tempfile.TemporaryDirectory() as folder:
            yield prepare(self._config(), cache_dir=Path(folder), download=True)


def _parts_of(data: DecodedData) -> dict[str, Images]:
    parts = {"train": data.train, "test": data.test}
    return {name: part for name, part in parts.items() if part is not None}
