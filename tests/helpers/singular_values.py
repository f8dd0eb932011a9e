"""The orthogonalisation of Muon, computed another way: on the singular values."""

import numpy as np

from tune_speed.components.optim.torch.muon import COEFFICIENTS


def by_hand(matrix, num_iterations):
    """The polynomial on the singular values themselves."""
    a, b, c = COEFFICIENTS
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(num_iterations):
        s = a * s + b * s**3 + c * s**5
    return u * s @ vt
