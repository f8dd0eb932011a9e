"""Images of a JPEG store on their way to the device: decoded by threads of this process."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from tune_speed.core.errors import DataError
from tune_speed.data.base import EncodedRows, Pixels, file_map
from tune_speed.data.boxes import Damaged, decode

MOST_THREADS = 8
"""That decode; fewer where torch has fewer."""


def damaged(images: EncodedRows, why: object) -> DataError:
    """Returns the error of a store that holds what is no image; `why` says which."""
    file = getattr(file_map(images.encoded), "filename", None)
    where = "" if file is None else f" Remove the folder of {file}: the set is then stored again."
    return DataError(f"Every stored image must be a whole JPEG file, but not {why}.{where}")


class DecodingThreads:
    """Threads of this process that decode images; Pillow lets several do so at a time."""

    def __init__(self, images: EncodedRows) -> None:
        self._images = images
        self._num_threads = max(1, min(MOST_THREADS, torch.get_num_threads()))
        self._pool = ThreadPoolExecutor(self._num_threads)

    def gather(self, indices: NDArray[np.int64], out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Decodes the images at `indices` (B,) of the file into `out`, and returns these places.

        Raises: DataError if one is damaged.
        """
        room = out[: len(indices)]
        shares = (np.array_split(each, self._num_threads) for each in (indices, room))
        one = partial(decode, self._images.encoded, self._images.ends)
        try:
            list(self._pool.map(one, *shares))
        except Damaged as error:
            raise damaged(self._images, error) from error
        return room

    def close(self) -> None:
        """Ends the threads once what they do is done."""
        self._pool.shutdown()


def pieces(pixels: Pixels, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yields copies of all images in their order, `size` at a time; encoded ones a piece ahead.

    Raises: DataError if an encoded one is damaged.
    """
    starts = range(0, len(pixels), size)
    if not isinstance(pixels, EncodedRows):
        yield from (pixels[start : start + size].copy() for start in starts)
        return
    with closing(DecodingThreads(pixels)) as threads, ThreadPoolExecutor(1) as ahead:

        def begin(start: int) -> Future[NDArray[np.uint8]]:
            rows = pixels.rows[start : start + size]
            return ahead.submit(threads.gather, rows, np.empty((len(rows), *pixels.box), np.uint8))

        following = begin(0)
        for start in starts:
            made = following.result()
            following = begin(start + size)
            yield made
