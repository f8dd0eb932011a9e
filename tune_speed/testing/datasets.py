"""What holds for every data set. Each contract decodes it: give a small one as `fields`."""

import tempfile
from pathlib import Path

import numpy as np

from tune_speed.data.base import DatasetConfig, DecodedData, Images
from tune_speed.data.cache import prepare
from tune_speed.data.mapped_rows import whole_of
from tune_speed.data.split import SplitConfig, make_splits
from tune_speed.testing.claims import require, working
from tune_speed.testing.entry import Contract, Entry

DECODE = "`def decode(self, *, download: bool, on_progress) -> DecodedData`"


def decode(entry: Entry[DatasetConfig]) -> tuple[DecodedData, list[tuple[int, int]]]:
    """Returns the data and the progress that was told. Raises: ContractError if it fails."""
    told: list[tuple[int, int]] = []
    with working("`decode` must work", of=entry.label, mend=f"It is called as {DECODE}."):
        data = entry.config().decode(
            download=True, on_progress=lambda done, total: told.append((done, total))
        )
    require(
        isinstance(data, DecodedData),
        "`decode` must return DecodedData(train, test, class_names)",
        of=entry.label,
        seen=f"it returned {type(data).__name__}",
        mend="Import it from tune_speed.data.base; `test` is None where there is none.",
    )
    for name, part in parts_of(data).items():
        kinds = tuple(type(each).__name__ for each in part)
        require(
            isinstance(part, Images) and isinstance(part.labels, np.ndarray),
            f"`{name}` must be Images(pixels, labels), both NumPy arrays",
            of=entry.label,
            seen=f"it is a {type(part).__name__} of {', '.join(kinds)}",
            mend="Import Images from tune_speed.data.base; convert by `np.array(…)`.",
        )
    return data, told


def parts_of(data: DecodedData) -> dict[str, Images]:
    """Returns the parts that there are, by name."""
    parts = {"train": data.train, "test": data.test}
    return {name: part for name, part in parts.items() if part is not None}


def images_are_uint8_in_the_order_n_h_w_c(entry: Entry[DatasetConfig]) -> None:
    """And training and test images are of one size."""
    data, _ = decode(entry)
    for name, (pixels, _) in parts_of(data).items():
        dtype = whole_of(pixels)[0].dtype
        seen = f"those of `{name}` are {dtype} of the shape {pixels.shape}"
        require(
            dtype == np.uint8,
            "pixels must be uint8, from 0 to 255",
            of=entry.label,
            seen=seen,
            mend="Do not normalise: that is done later. Convert by `.astype(np.uint8)`.",
        )
        require(
            len(pixels.shape) == 4 and pixels.shape[-1] in (1, 3, 4),
            "pixels must have the shape (images, height, width, channels)",
            of=entry.label,
            seen=seen,
            mend="Grey images need `pixels[..., None]`; channels first need"
            " `.transpose(0, 2, 3, 1)`.",
        )
    sizes = {pixels.shape[1:] for pixels, _ in parts_of(data).values()}
    require(
        len(sizes) == 1,
        "training and test images must have one size",
        of=entry.label,
        seen=f"they have {sizes}",
        mend="Scale or crop all to one size.",
    )


def labels_are_numbers_of_its_classes(entry: Entry[DatasetConfig]) -> None:
    """One an image, from 0 up to the number of class names."""
    data, _ = decode(entry)
    num_classes = len(data.class_names)
    for name, (pixels, labels) in parts_of(data).items():
        require(
            labels.dtype == np.int64 and labels.shape == (len(pixels),),
            f"labels must be int64 of the shape ({len(pixels)},), one an image",
            of=entry.label,
            seen=f"those of `{name}` are {labels.dtype} of the shape {labels.shape}",
            mend="Make them by `np.array(numbers, dtype=np.int64)`.",
        )
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, -1)
        require(
            len(labels) > 0 and low >= 0 and high < num_classes,
            f"labels must be from 0 to {num_classes - 1}, as there are {num_classes} class names",
            of=entry.label,
            seen=f"those of `{name}` are from {low} to {high}"
            if len(labels)
            else f"`{name}` holds no image",
            mend="Number classes from 0, and give every class a name in `class_names`.",
        )


def sizes_known_before_decoding_are_those_decoded(entry: Entry[DatasetConfig]) -> None:
    """`num_train` and `num_test` are asked before anything is decoded."""
    config = entry.config()
    with working(
        "`num_train` and `num_test` must answer", of=entry.label, mend="Return a number of images."
    ):
        said = {"train": config.num_train(), "test": config.num_test()}
    data, _ = decode(entry)
    held = {"train": len(data.train.labels), "test": data.test and len(data.test.labels)}
    for name in said:
        require(
            said[name] == held[name],
            f"`num_{name}` must return what `decode` gives",
            of=entry.label,
            seen=f"it returned {said[name]}, and {held[name]} images were decoded",
            mend="Count what will be decoded, None for a test part that is not there.",
        )


def decoding_twice_gives_the_same_data(entry: Entry[DatasetConfig]) -> None:
    """The hash of the content is part of what a run's record says."""
    hashes = []
    for _ in range(2):
        with (
            tempfile.TemporaryDirectory() as folder,
            working("it must be decoded into a cache", of=entry.label, mend="See the error."),
        ):
            config = entry.config()
            hashes.append(prepare(config, cache_dir=Path(folder), download=True).data_hash)
    require(
        hashes[0] == hashes[1],
        "decoding twice must give the same pixels and labels in the same order",
        of=entry.label,
        seen=f"their hashes are {' and '.join(hashes)}",
        mend="Sort file names, and draw nothing, or by a seed that is a field.",
    )


def sources_are_files(entry: Entry[DatasetConfig]) -> None:
    """Their sizes and times say when a cached copy is out of date."""
    decode(entry)  # Sources that are fetched are there only now.
    with working("`sources` must answer", of=entry.label, mend="Return a list, empty for none."):
        missing = [str(path) for path in entry.config().sources() if not path.is_file()]
    require(
        not missing,
        "`sources` must return the files that are read",
        of=entry.label,
        seen=f"there is no file {', '.join(missing[:3])}",
        mend="Return pathlib.Path of each file (no folders); [] if it reads none.",
    )


def progress_ends_with_every_image(entry: Entry[DatasetConfig]) -> None:
    """A user who waits sees how far it is."""
    data, told = decode(entry)
    total = sum(len(part.labels) for part in parts_of(data).values())
    require(
        bool(told) and told[-1] == (total, total),
        f"`on_progress` must be called last with ({total}, {total})",
        of=entry.label,
        seen=f"its last call was {told[-1] if told else 'never'}",
        mend="Call `on_progress(images_done, images_total)` now and then, and at the end.",
    )


def location_fields_are_fields(entry: Entry[DatasetConfig]) -> None:
    """They say where data lie, and are no part of what the data are."""
    unknown = sorted(entry.kind.location_fields - entry.kind.model_fields.keys())
    require(
        not unknown,
        "`location_fields` must name fields of the class",
        of=entry.label,
        seen=f"{', '.join(f'`{name}`' for name in unknown)} are none",
        mend=f"Its fields are {', '.join(entry.kind.model_fields) or 'none'}.",
    )


def data_can_be_split_for_training(entry: Entry[DatasetConfig]) -> None:
    """A quarter of the images is set aside for validation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        working(
            "it must be possible to set images aside for validation",
            of=entry.label,
            mend="Let every class have at least some images.",
        ),
    ):
        data = prepare(entry.config(), cache_dir=Path(folder), download=True)
        splits = make_splits(data, SplitConfig(validation_frac=0.25))
    channels = splits.train.pixels.shape[-1]
    require(
        len(splits.mean) == len(splits.std) == channels,
        "there must be a mean and a spread for each channel",
        of=entry.label,
        seen=f"there are {len(splits.mean)} means for {channels} channels",
        mend="Let images have one shape (height, width, channels).",
    )


CONTRACTS: tuple[Contract[DatasetConfig], ...] = (
    location_fields_are_fields,
    images_are_uint8_in_the_order_n_h_w_c,
    labels_are_numbers_of_its_classes,
    sizes_known_before_decoding_are_those_decoded,
    decoding_twice_gives_the_same_data,
    sources_are_files,
    progress_ends_with_every_image,
    data_can_be_split_for_training,
)
