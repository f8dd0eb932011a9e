"""Affine changes of images by SciPy, as what ours are compared with."""

import numpy as np
import scipy.ndimage


def changed_by_scipy(image, entries, *, most):
    """Returns an image (H, W, C) under the change of six numbers of 10 bits, in one integer."""
    numbers = (int(entries) >> (10 * np.arange(6))) & 1023
    matrix = (numbers / 1023 * 2 * most - most).reshape(2, 3)
    size = np.array(image.shape[:2])
    # Ours is of (x, y) in [-1, 1], theirs of (row, column) between the pixels' centres.
    turn = (np.eye(2) + matrix[:, :2])[::-1, ::-1]
    to_unit, middle, from_unit = np.diag(2 / size), 1 / size - 1, np.diag(size / 2)
    shift = from_unit @ (turn @ middle + matrix[::-1, 2] - middle)
    whole = from_unit @ turn @ to_unit
    channels = (
        scipy.ndimage.affine_transform(channel, whole, shift, order=1, mode="reflect")
        for channel in np.moveaxis(image, -1, 0)
    )
    return np.stack(list(channels), axis=-1)
