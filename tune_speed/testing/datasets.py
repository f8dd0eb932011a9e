"""What holds for every data set. Each contract decodes it: give a small one as `fields`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tune_speed.data.base import DatasetConfig, DecodedData, Images, whole_of
from tune_speed.data.cache import PreparedData, prepare
from tune_speed.data.split import SplitConfig, make_splits
from tune_speed.testing.entry import ConfigContracts

DECODE = "`def decode(self, *, download: bool, on_progress) -> DecodedData`"


class DatasetContracts(ConfigContracts[DatasetConfig]):
    """What holds for every data set."""

    table = "DATASETS"
    tag = "name"

    def _decode(self) -> tuple[DecodedData, list[tuple[int, int]]]:
        """Returns the data and the calls of `on_progress`. Raises: ContractError if it fails."""
        calls: list[tuple[int, int]] = []
        with self._working("`decode` must work", fix=f"It is called as {DECODE}."):
            data = self._config().decode(
                download=True, on_progress=lambda done, total: calls.append((done, total))
            )
        self._require(
            isinstance(data, DecodedData),
            "`decode` must return DecodedData(train, test, class_names)",
            seen=f"it returned {type(data).__name__}",
            fix="Import it from tune_speed.components; `test` is None where there is none.",
        )
        for name, part in _parts_of(data).items():
            kinds = tuple(type(each).__name__ for each in part[:2])
            self._require(
                isinstance(part, Images) and isinstance(part.labels, np.ndarray),
                f"`{name}` must be Images(pixels, labels), both NumPy arrays",
                seen=f"it is a {type(part).__name__} of {', '.join(kinds)}",
                fix="Import Images from tune_speed.components; convert by `np.array(…)`.",
            )
        return data, calls

    def images_are_uint8_in_the_order_n_h_w_c(self) -> None:
        """And training and test images are of one size."""
        data, _ = self._decode()
        for name, (pixels, *_) in _parts_of(data).items():
            dtype = whole_of(pixels)[0].dtype
            seen = f"those of `{name}` are {dtype} of the shape {pixels.shape}"
            fix = "Do not normalise: that is done later. Convert by `.astype(np.uint8)`."
            self._require(dtype == np.uint8, "pixels must be uint8, from 0 to 255", seen, fix)
            self._require(
                len(pixels.shape) == 4 and pixels.shape[-1] in (1, 3, 4),
                "pixels must have the shape (images, height, width, channels)",
                seen,
                "Grey images need `pixels[..., None]`; channels first `.transpose(0, 2, 3, 1)`.",
            )
        sizes = {pixels.shape[1:] for pixels, *_ in _parts_of(data).values()}
        claim, fix = "training and test images must have one size", "Scale or crop all to one size."
        self._require(len(sizes) == 1, claim, f"they have {sizes}", fix)

    def labels_are_numbers_of_its_classes(self) -> None:
        """One an image, from 0 up to the number of class names; or 0 and 1 for each class."""
        data, _ = self._decode()
        num_classes = len(data.class_names)
        for name, (pixels, labels, _) in _parts_of(data).items():
            if labels.dtype == np.float32 and labels.shape == (len(pixels), num_classes):
                claim = f"labels of {num_classes} classes each must be 0 or 1"
                fix = "Write 1 for each class that an image is of."
                self._require(
                    bool(np.isin(labels, (0, 1)).all()), claim, f"`{name}` has others", fix
                )
                continue
            self._require(
                labels.dtype == np.int64 and labels.shape == (len(pixels),),
                f"labels must be int64 of the shape ({len(pixels)},), one an image",
                seen=f"those of `{name}` are {labels.dtype} of the shape {labels.shape}",
                fix="Make them by `np.array(numbers, dtype=np.int64)`.",
            )
            claim = f"labels must be from 0 to {num_classes - 1}, for {num_classes} class names"
            fix = "Number classes from 0, and give every class a name in `class_names`."
            self._require(len(labels) > 0, claim, f"`{name}` holds no image", fix)
            low, high = int(labels.min()), int(labels.max())
            seen = f"those of `{name}` are from {low} to {high}"
            self._require(low >= 0 and high < num_classes, claim, seen, fix)

    def sizes_known_before_decoding_are_those_decoded(self) -> None:
        """`num_train` and `num_test` are called before anything is decoded."""
        config = self._config()
        claim, fix = "`num_train` and `num_test` must answer", "Return a number of images."
        with self._working(claim, fix=fix):
            said = {"train": config.num_train(), "test": config.num_test()}
        data, _ = self._decode()
        held = {"train": len(data.train.labels), "test": data.test and len(data.test.labels)}
        for name in said:
            self._require(
                said[name] == held[name],
                f"`num_{name}` must return what `decode` gives",
                seen=f"it returned {said[name]}, and {held[name]} images were decoded",
                fix="Count what will be decoded, None for a test part that is not there.",
            )

    def decoding_twice_gives_the_same_data(self) -> None:
        """The hash of the content is part of what a run's record says."""
        hashes = []
        for _ in range(2):
            # A cache of its own each time: a second look into the first would decode nothing.
            with self._prepared("it must be decoded into a cache", fix="See the error.") as data:
                hashes.append(data.data_hash)
        self._require(
            hashes[0] == hashes[1],
            "decoding twice must give the same pixels and labels in the same order",
            seen=f"their hashes are {' and '.join(hashes)}",
            fix="Sort file names, and draw nothing, or by a seed that is a field.",
        )

    def sources_are_files(self) -> None:
        """Their sizes and times say when a cached copy is out of date."""
        # Sources that are downloaded are there only now.
        self._decode()
        with self._working("`sources` must answer", fix="Return a list, empty for none."):
            missing = [str(path) for path in self._config().sources() if not path.is_file()]
        claim = "`sources` must return the files that are read"
        fix = "Return pathlib.Path of each file (no folders); [] if it reads none."
        self._require(not missing, claim, f"there is no file {', '.join(missing[:3])}", fix)

    def progress_ends_with_every_image(self) -> None:
        """A user who waits sees how far it is."""
        data, calls = self._decode()
        total = sum(len(part.labels) for part in _parts_of(data).values())
        self._require(
            bool(calls) and calls[-1] == (total, total),
            f"`on_progress` must be called last with ({total}, {total})",
            seen=f"its last call was {calls[-1] if calls else 'never'}",
            fix="Call `on_progress(images_done, images_total)` now and then, and at the end.",
        )

    def data_can_be_split_for_training(self) -> None:
        """A quarter of the images is set aside for validation."""
        claim = "it must be possible to set images aside for validation"
        with self._prepared(claim, fix="Let every class have at least some images.") as data:
            splits = make_splits(data, SplitConfig(validation_frac=0.25))
        channels = splits.train.pixels.shape[-1]
        self._require(
            len(splits.mean) == len(splits.std) == channels,
            "there must be a mean and a spread for each channel",
            seen=f"there are {len(splits.mean)} means for {channels} channels",
            fix="Let images have one shape (height, width, channels).",
        )

    @contextmanager
    def _prepared(self, claim: str, *, fix: str) -> Iterator[PreparedData]:
        with tempfile.TemporaryDirectory() as folder, self._working(claim, fix=fix):
            yield prepare(self._config(), cache_dir=Path(folder), download=True)


def _parts_of(data: DecodedData) -> dict[str, Images]:
    parts = {"train": data.train, "test": data.test}
    return {name: part for name, part in parts.items() if part is not None}
