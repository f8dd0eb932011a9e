"""Random numbers that are the same on every machine and in every later NumPy.

A key is a tuple of integers such as (seed, epoch, use); different keys give independent streams.
"""

# NumPy promises the raw stream of a bit generator, not the streams of its distributions. Splits and
# sample orders therefore come from raw bits alone.

import numpy as np
from numpy.typing import NDArray


def bits(*key: int, count: int) -> NDArray[np.uint64]:
    """Returns `count` random 64-bit words of the stream `key`; its integers lie in [0, 2**64)."""
    # With its length: SeedSequence pads with zeros, so (1,) and (1, 0) would give the same stream.
    # As 64 bits each: it would split a large integer and take 2**32 for (0, 1).
    entropy = np.array((len(key), *key), dtype="<u8").view("<u4")
    return np.asarray(np.random.PCG64(np.random.SeedSequence(entropy.tolist())).random_raw(count))


def below(limit: int, *key: int, count: int) -> NDArray[np.int64]:
    """Returns `count` integers, uniform in [0, limit), for `limit` up to 2**32.

    The upper 32 bits u of a word give floor(u * limit / 2**32), which favours no value by more than
    limit / 2**32.
    """
    upper = bits(*key, count=count) >> np.uint64(32)
    return (upper * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def permutation(*key: int, count: int) -> NDArray[np.int64]:
    """Returns the numbers 0 to count - 1 in random order.

    Each number is in the lowest bits of a random word; sorting the words shuffles the numbers.
    Two words cannot tie, so that the order is the same whatever the sorting algorithm.
    """
    width = np.uint64(max(count - 1, 0).bit_length())
    words = bits(*key, count=count) >> width << width | np.arange(count, dtype=np.uint64)
    words.sort()
    return (words & ((np.uint64(1) << width) - np.uint64(1))).astype(np.int64)
