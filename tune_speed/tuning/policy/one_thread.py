"""Linear algebra on one thread, where matrices are small."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the block's linear algebra (BLAS) on one thread."""
    # A proposal with 500 finished trials takes 24 ms so, and 54 ms on two threads of a busy machine
    # with two cores: synchronising costs more than matrices of that size gain.
    with _controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _controller() -> ThreadpoolController:
    # Finds the libraries that are loaded by now, so late: after NumPy's and SciPy's.
    return ThreadpoolController()
