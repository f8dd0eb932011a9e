"""What holds for every entry of METRICS."""

import re

import pytest
from helpers.making import make_evaluation, make_run

from tune_speed.components.metrics import METRICS
from tune_speed.core.records import RunResult, Status


@pytest.mark.parametrize("name", METRICS)
def test_metric_says_what_it_is_in_which_unit_and_whence(name: str) -> None:
    metric = METRICS[name]
    assert len(metric.about) > 20 and metric.about.endswith(".")
    assert metric.unit and metric.source


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].of_run])
def test_metric_of_a_run_is_a_number_or_none_whatever_is_missing(name: str) -> None:
    of_run = METRICS[name].of_run
    assert of_run is not None
    bare = RunResult(status=Status.FAILED, seed=0, stop_reason="failed")
    assert of_run(bare) is None
    full = make_run().model_copy(update={"evaluations": (make_evaluation(),)})
    assert of_run(full) is None or isinstance(of_run(full), float)


@pytest.mark.parametrize("name", [name for name in METRICS if not METRICS[name].of_run])
def test_metric_that_is_not_of_a_run_says_where_to_look(name: str) -> None:
    assert re.search("`.+`", METRICS[name].about)
