"""What all data sets of encoded images share: at which size their images are stored, and how."""

import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from tune_speed.core.config import left_out
from tune_speed.data.base import (
    Counts,
    DecodedData,
    EncodedData,
    Grouped,
    Images,
    Listing,
    OnProgress,
)
from tune_speed.data.datasets.decoding import Storage, Stored, decode_images

STORED_MARGIN = 1.15
"""The shorter side of a stored image over the largest size at which a recipe may show it."""


class ImageFiles(Listing):
    """Base of the data sets whose images are decoded once, into the cache."""

    image_size: int | None = left_out(None, ge=1)
    """Height and width [pixels] at which images are stored: the shorter side is scaled to it and
    the centre cropped. For files of earlier versions: `store_size` keeps the whole image, and the
    recipe's `image_size` says at which size it trains."""
    store_size: int | None = left_out(None, ge=8)
    """Shorter side [pixels] to which larger images are scaled for storage, their aspect ratio kept;
    null: 1.15 times the largest size that the recipe can train at."""
    store: Literal["auto", "pixels", "jpeg"] = left_out("auto")
    """What is stored: pixels, which are read as they are, or JPEG at `store_size`, which is decoded
    in each epoch and takes about a tenth of the space; auto: pixels up to 16 GiB, else JPEG."""

    def listing(self) -> EncodedData:
        """Returns every image, encoded, with its label; decodes none.

        Raises: DataError if data are missing or unreadable; it names the file and row.
        """
        raise NotImplementedError

    def fetch(self) -> None:
        """Downloads what is missing, where the data set knows from where. Raises: DataError."""

    def counts(self) -> Counts:
        data = self.listing()
        labels, num_test = data.train.labels, None if data.test is None else len(data.test.labels)
        grouped = None if data.groups is None else Grouped(labels, data.groups)
        return Counts(len(labels), num_test, data.num_validation, grouped)

    def store_in(self, folder: Path, listing: EncodedData, on_progress: OnProgress) -> Stored:
        """Decodes the listed images into the files of `folder`; see `decode_images`."""
        storage = Storage(self.image_size, self.store_size, self.store)
        return decode_images(listing, storage, folder, on_progress)

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        if download:
            self.fetch()
        listing = self.listing()
        with tempfile.TemporaryDirectory() as name:
            found = self.store_in(Path(name), listing, on_progress).arrays
            files = Path(name).glob("*.npy")
            arrays = {**{path.stem: np.load(path, allow_pickle=False) for path in files}, **found}
        train, test = Images.of(arrays, "train"), Images.of(arrays, "test")
        assert train is not None
        brought = (listing.num_validation, listing.groups)
        return DecodedData(train, test, listing.class_names, *brought)
