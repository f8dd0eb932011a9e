from helpers.documents import documented_tags, undocumented
from helpers.making import make_record, make_run

from tune_speed.core.records import Status
from tune_speed.tracking import schema
from tune_speed.tracking.glossary import METRICS


def test_every_metric_of_any_trial_is_documented() -> None:
    for runs in ((make_run(),), (make_run(seed=1), make_run(Status.MISSED, seed=2))):
        full = tuple(
            run.model_copy(
                update={"slowdown": 1.5, "fed_ratio": 1.0, "gpu_utilisation": 0.5, "init_s": 0.5}
            )
            for run in runs
        )
        points = schema.record_points(make_record(runs=full), start_ms=0)
        assert undocumented({point.key for point in points}, METRICS) == []


def test_every_tag_of_any_trial_is_documented() -> None:
    long = {f"model.block_{i}.width": "x" * 100 for i in range(200)}
    record = make_record(params=long)
    tags = schema.record_tags(record) | schema.start_tags("t0000", kind="estimate")
    assert (
        undocumented(tags | schema.searched_tag(long) | schema.user_tags(), documented_tags()) == []
    )
    assert "tune_speed.record.1" in tags


def test_a_name_that_nobody_described_is_found() -> None:
    assert undocumented(["trials_oom", "trials", "trial"], METRICS) == ["trial"]
    assert undocumented(["accuracy/seed_12", "accuracy/other"], METRICS) == ["accuracy/other"]
    tags = ["tune_speed.env.torch", "tune_speed.env"]
    assert undocumented(tags, documented_tags()) == ["tune_speed.env"]


def test_metrics_have_a_unit_and_a_moment() -> None:
    assert {about.when for about in METRICS.values()} == {"steps", "end", "search"}
    assert all(about.unit and about.about for about in METRICS.values())
