"""What holds for every metric. It is an object, not a configuration."""

import math
from collections.abc import Callable

from tune_speed.components.metrics.base import Metric
from tune_speed.core.records import Clocks, Evaluation, RunResult, Status
from tune_speed.testing.claims import require, working


def metric_says_what_it_is_in_which_unit_and_whence(name: str, metric: Metric) -> None:
    """As `tune-speed list metrics` prints."""
    require(
        len(metric.about) > 20 and metric.about.endswith("."),
        "`about` must be a sentence that says what it is",
        of=label(name),
        seen=f"it is {metric.about!r}",
        mend="Write more than 20 characters, with a full stop.",
    )
    for field in ("unit", "source"):
        require(
            bool(getattr(metric, field)),
            f"`{field}` must be given",
            of=label(name),
            seen="it is empty",
            mend="A unit may be `1`; a source may be a paper, a page or your own definition.",
        )


def metric_of_a_run_is_a_number_or_none(name: str, metric: Metric) -> None:
    """Whatever a run's record lacks."""
    if metric.of_run is None:
        require(
            f"`{name}`" in metric.about,
            "a metric that is not of one run must name its function in `about`",
            of=label(name),
            seen=f"`{name}` is not in {metric.about!r}",
            mend="Give `of_run`, or say which function computes it.",
        )
        return
    for run, what in ((_failed_run(), "a run that failed at once"), (_finished_run(), "a run")):
        with working(
            f"`of_run` must answer for {what}",
            of=label(name),
            mend="Return None where the record lacks what it needs.",
        ):
            value = metric.of_run(run)
        require(
            value is None or isinstance(value, float),
            f"`of_run` must return a float or None for {what}",
            of=label(name),
            seen=f"it returned {value!r}",
            mend="Convert by `float(…)`.",
        )


def metric_of_logits_is_a_number_and_leaves_them_alone(name: str, metric: Metric) -> None:
    """As it may be a target, that of any logits of a classifier."""
    if metric.of_logits is None:
        return
    import torch

    for num_classes in (2, 10):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn((32, num_classes), generator=generator)
        labels = torch.randint(num_classes, (32,), generator=generator)
        before = logits.clone()
        with working(
            f"`of_logits` must answer for {num_classes} classes",
            of=label(name),
            mend="It is given logits (N, K), float32, and labels (N,), int64.",
        ):
            value = metric.of_logits(logits, labels)
        require(
            isinstance(value, float) and math.isfinite(value),
            "`of_logits` must return a finite float",
            of=label(name),
            seen=f"it returned {value!r}",
            mend="Convert by `float(…)`.",
        )
        require(
            bool((logits == before).all()),
            "`of_logits` must leave the logits as they are",
            of=label(name),
            seen="they changed",
            mend="Work on a copy: `logits.clone()`.",
        )


def label(name: str) -> str:
    """Returns what begins every message."""
    return f"Metric `{name}`"


def _failed_run() -> RunResult:
    return RunResult(status=Status.FAILED, seed=0, stop_reason="failed")


def _finished_run() -> RunResult:
    evaluation = Evaluation(
        step=10, samples=320, epoch=1.0, train_s=1.0, accuracy=0.95, macro_f1=0.5, loss=0.1
    )
    return RunResult(
        status=Status.REACHED,
        seed=0,
        stop_reason="reached its target",
        time_to_target_s=1.0,
        evaluations=(evaluation,),
        clocks=Clocks(train_s=1.0, wall_s=2.0),
        steps=10,
        samples=320,
        images_per_s=320.0,
        step_time_ms=100.0,
        peak_memory_gib=0.5,
        memory_limit_gib=1.0,
        batch_size=32,
        accumulation_steps=1,
        device="cpu (1 threads, test)",
    )


CONTRACTS: tuple[Callable[[str, Metric], None], ...] = (
    metric_says_what_it_is_in_which_unit_and_whence,
    metric_of_a_run_is_a_number_or_none,
    metric_of_logits_is_a_number_and_leaves_them_alone,
)
