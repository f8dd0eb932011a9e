import numpy as np
import pytest
import torch
from helpers.components.references import by_hand

from tune_speed.components.optim.torch.muon import (
    COEFFICIENTS,
    newton_schulz,
    orthogonalized,
)

# The least and largest value of the polynomial's fixed band, found by iterating it on numbers.
BAND = (0.68, 1.14)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_band_is_where_the_polynomial_ends_for_values_down_to_a_hundredth():
    a, b, c = COEFFICIENTS
    s = np.linspace(0.01, 1.0, 100_000)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    assert BAND[0] < s.min() < 0.7
    assert 1.1 < s.max() < BAND[1]


@pytest.mark.parametrize("shape", [(16, 16), (16, 27), (64, 10), (8, 3, 3, 3), (8, 6, 1, 1)])
def test_singular_values_end_near_one_and_singular_vectors_stay(shape):
    tensor = random(*shape)
    (result,) = orthogonalized([tensor], num_iterations=5)
    assert result.shape == tensor.shape
    before, after = tensor.reshape(len(tensor), -1), result.reshape(len(tensor), -1)
    values = torch.linalg.svdvals(after)
    large = torch.linalg.svdvals(before / before.norm()) > 0.01
    assert BAND[0] < values[large].min() and values.max() < BAND[1]
    u, _, vt = torch.linalg.svd(before, full_matrices=False)
    diagonal = u.T @ after @ vt.T
    torch.testing.assert_close(diagonal, torch.diag(diagonal.diag()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_iterations", [1, 3, 5])
@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4)])
def test_the_iteration_is_the_polynomial_of_the_singular_values_in_float64(shape, num_iterations):
    matrix = random(*shape, seed=1)
    (result,) = orthogonalized([matrix], num_iterations=num_iterations)
    np.testing.assert_allclose(result.numpy(), by_hand(matrix.numpy(), num_iterations), atol=1e-12)


def test_a_batch_gives_what_each_matrix_gives_alone_in_the_order_given():
    tensors = [
        random(*shape, seed=i) for i, shape in enumerate([(4, 6), (6, 4), (3, 2, 3), (4, 6)])
    ]
    together = orthogonalized(tensors, num_iterations=3)
    alone = [orthogonalized([tensor], num_iterations=3)[0] for tensor in tensors]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_zero_matrix_stays_zero():
    assert not newton_schulz(torch.zeros(1, 3, 4), 5).any()


def test_scale_does_not_matter():
    matrix = random(4, 6)
    small, large = orthogonalized([1e-5 * matrix, 1e5 * matrix], num_iterations=5)
    torch.testing.assert_close(small, large, rtol=1e-9, atol=1e-9)
