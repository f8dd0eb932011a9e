import math

import numpy as np
from truths import truth

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import NO_CURVE, Curve
from tune_speed.tuning.simulation.recorded import RecordedBenchmark, RecordedRun


def test_truth_of_a_recorded_configuration_is_that_of_all_its_runs() -> None:
    def run(x: float, *metric: float) -> RecordedRun:
        curve = Curve(np.array([2.0, 4.0]), np.array(metric)) if metric else NO_CURVE
        return RecordedRun({"x": x}, curve, is_done=bool(metric), planned_s=4.0)

    runs = [run(0.1, 0.1, end) for end in (0.95, 0.5, 0.9, 0.2, 0.89)]
    space = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}})
    benchmark = RecordedBenchmark(
        name="made",
        space=space,
        target=0.9,
        mode="fixed_length",
        runs=[*runs, run(0.5, 0.1, 0.8), run(0.9)],
    )
    # Two of five met 0.9, and each took 4 s.
    assert truth(benchmark, {"x": 0.1}) == (0.4, 10.0)
    assert truth(benchmark, {"x": 0.5}) == truth(benchmark, {"x": 0.9}) == (0.0, math.inf)
