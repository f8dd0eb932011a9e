from making import make_run

from tune_speed.components.metrics.base import OF_RUN, peak_memory_frac


def test_share_is_peak_over_limit() -> None:
    run = make_run().model_copy(update={"peak_memory_gib": 3.0, "memory_limit_gib": 12.0})
    assert peak_memory_frac(run) == 0.25


def test_share_is_not_known_without_a_limit_or_a_peak() -> None:
    assert peak_memory_frac(make_run().model_copy(update={"memory_limit_gib": None})) is None
    assert peak_memory_frac(make_run().model_copy(update={"peak_memory_gib": None})) is None


def test_share_of_the_device_is_of_the_whole_gpu() -> None:
    memory = {"device_memory_gib": 60.0, "gpu_memory_gib": 80.0, "memory_limit_gib": 20.0}
    assert OF_RUN["device_memory_frac"](make_run().model_copy(update=memory)) == 0.75
    assert OF_RUN["device_memory_frac"](make_run()) is None
