import itertools
import math

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from tune_speed.tuning.driver.cost_model import (
    FACTOR_SD,
    GROWTH,
    GROWTH_SD,
    LEVEL_SD,
    REST_SD,
    Key,
    StepTimes,
)

PRECISION = {"fp32": 1.0, "bf16": 0.55}
PAD = {0: 1.0, 2: 1.2}


def step_s(key: Key, samples: int) -> float:
    precision, pad, _ = key
    return 0.002 * PRECISION[precision] * PAD[pad] * samples**0.9


def seen(*keys: Key) -> dict[Key, tuple[float, int]]:
    return {key: (step_s(key, key[2]), key[2]) for key in keys}


def test_time_of_the_only_kind_is_its_own() -> None:
    key = ("fp32", 0, 64)
    assert StepTimes(seen(key))(key, 64) == pytest.approx(step_s(key, 64), rel=1e-6)


def test_from_one_kind_alone_a_batch_twice_as_large_takes_nearly_twice_as_long() -> None:
    key = ("fp32", 0, 64)
    ratio = StepTimes(seen(key))(("fp32", 0, 128), 128) / step_s(key, 64)
    assert ratio == pytest.approx(2**GROWTH, rel=1e-6)


def test_each_value_is_learned_from_the_kinds_that_share_the_others() -> None:
    every = list(itertools.product(PRECISION, PAD, (32, 64, 128)))
    for left_out in every:
        times = StepTimes(seen(*(key for key in every if key != left_out)))
        assert times(left_out, left_out[2]) == pytest.approx(
            step_s(left_out, left_out[2]), rel=0.08
        )


def test_slow_value_that_ran_once_is_expected_to_be_slow_elsewhere() -> None:
    ran = seen(("fp32", 0, 32), ("bf16", 0, 32), ("bf16", 2, 64), ("bf16", 0, 128))
    times = StepTimes(ran)
    ratio = times(("fp32", 2, 128), 128) / times(("bf16", 2, 128), 128)
    assert 1.4 < ratio < 1 / PRECISION["bf16"]


def test_prediction_is_that_of_scikit_learns_ridge() -> None:
    keys = [("fp32", 0, 32), ("bf16", 0, 64), ("bf16", 2, 32), ("fp32", 2, 128)]
    values = [(place, key[place]) for key in keys for place in range(3)]
    values = list(dict.fromkeys(values))
    scales = [LEVEL_SD, GROWTH_SD] + [FACTOR_SD] * len(values)

    def row(key: Key, samples: int) -> list[float]:
        hot = [float(key[place] == value) for place, value in values]
        return [x * s for x, s in zip([1.0, math.log(samples), *hot], scales, strict=True)]

    rest = np.array([math.log(step_s(k, k[2])) - GROWTH * math.log(k[2]) for k in keys])
    model = Ridge(alpha=REST_SD**2, fit_intercept=False)
    model.fit([row(k, k[2]) for k in keys], rest - rest.mean())
    new = ("bf16", 2, 256)
    theirs = rest.mean() + GROWTH * math.log(256) + model.predict([row(new, 256)])[0]
    assert math.log(StepTimes(seen(*keys))(new, 256)) == pytest.approx(theirs, abs=1e-6)
