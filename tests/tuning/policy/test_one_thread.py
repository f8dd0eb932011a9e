import numpy as np
import scipy.linalg
from threadpoolctl import threadpool_info

from tune_speed.tuning.policy.gaussian_process import one_thread


def blas_threads() -> set[int]:
    scipy.linalg.solve(np.eye(2), np.ones(2))
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_linear_algebra_runs_on_one_thread_within_and_on_as_many_as_before_after() -> None:
    before = blas_threads()
    with one_thread():
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_a_decorated_function_runs_on_one_thread_each_time() -> None:
    threads = one_thread()(blas_threads)
    assert (threads(), threads()) == ({1}, {1})
