"""Images of a part of a large set, left in the file that the whole set is mapped from."""

import numpy as np
from numpy.typing import NDArray


class MappedRows:
    """Some rows of a mapped array, in an order of their own; read on access."""

    # All processes that map the file share its pages; of a copy each would have its own.
    def __init__(self, whole: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Reads nothing yet of the rows (M,) of the mapped array (N, H, W, C)."""
        self.whole, self.rows = whole, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, H, W, C)."""
        return (len(self.rows), *self.whole.shape[1:])

    def __len__(self) -> int:
        """Returns M."""
        return len(self.rows)

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        """Returns a copy of the rows in a range, (B, H, W, C)."""
        return self.whole.take(self.rows[which], axis=0)


Pixels = NDArray[np.uint8] | MappedRows
"""Images (N, H, W, C), in memory or in a file."""


def whole_of(pixels: Pixels) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Returns an array that holds the images, and where: None, if at their own places."""
    if isinstance(pixels, MappedRows):
        return pixels.whole, pixels.rows
    return pixels, None
