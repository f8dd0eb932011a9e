from making import make_run

from tune_speed.components.metrics.of_run import peak_memory_frac


def test_share_is_peak_over_limit() -> None:
    run = make_run().model_copy(update={"peak_memory_gib": 3.0, "memory_limit_gib": 12.0})
    assert peak_memory_frac(run) == 0.25


def test_share_is_not_known_without_a_limit_or_a_peak() -> None:
    assert peak_memory_frac(make_run().model_copy(update={"memory_limit_gib": None})) is None
    assert peak_memory_frac(make_run().model_copy(update={"peak_memory_gib": None})) is None
