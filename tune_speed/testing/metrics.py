"""What holds for every metric. It is an object, not a configuration."""

import math
from typing import Any

import torch

from tune_speed.components.metrics.base import Metric
from tune_speed.core.records import Clocks, Evaluation, RunResult, Status
from tune_speed.testing.entry import Contracts, Seen

SHOWN_BY = ("`tune-speed ", "`Results.")
# The record that lacks most: no evaluation, no step, no clock.
FAILED = RunResult(status=Status.FAILED, seed=0, stop_reason="failed")
LAST = Evaluation(
    step=10, samples=320, epoch=1.0, train_s=1.0, accuracy=0.95, macro_f1=0.5, loss=0.1
)
FIGURES: dict[str, Any] = {
    **{"time_to_target_s": 1.0, "images_per_s": 320.0, "flop": 6.4e8, "step_time_ms": 100.0},
    **{"steps": 10, "samples": 320, "batch_size": 32, "accumulation_steps": 1},
    **{"peak_memory_gib": 0.5, "memory_limit_gib": 1.0, "device": "cpu (1 threads, test)"},
    **{"evaluations": (LAST,), "clocks": Clocks(train_s=1.0, wall_s=2.0)},
}
REACHED = RunResult(status=Status.REACHED, seed=0, stop_reason="reached its target", **FIGURES)


class MetricContracts(Contracts[Metric]):
    """What holds for every metric."""

    table = "METRICS"

    def about_is_a_sentence(self) -> Seen:
        """Write more than 20 characters, with a full stop."""
        if len(self.entry.about) <= 20 or not self.entry.about.endswith("."):
            yield f"it is {self.entry.about!r}"

    def metric_of_a_run_is_a_number_or_none(self) -> Seen:
        """Return a float or None; without `of_run`, name in `about` what computes or shows it."""
        about = self.entry.about
        if self.entry.of_run is None:
            if not any(place in about for place in (f"`{self.name}`", *SHOWN_BY)):
                yield f"it has no `of_run`, and no function or command is in {about!r}"
            return
        for run in (FAILED, REACHED):
            value = self.entry.of_run(run)
            if value is not None and not isinstance(value, float):
                yield f"`of_run` returned {value!r} for a run that {run.stop_reason}"

    def metric_of_logits_is_a_number_and_leaves_them_alone(self) -> Seen:
        """Return a finite float, of logits (N, K), float32, and labels (N,), int64; change none."""
        if self.entry.of_logits is None:
            return
        # Two classes as well: a metric of the best five, say, has too few there.
        for num_classes in (2, 10):
            generator = torch.Generator().manual_seed(0)
            logits = torch.randn((32, num_classes), generator=generator)
            labels = torch.randint(num_classes, (32,), generator=generator)
            before = logits.clone()
            value = self.entry.of_logits(logits, labels)
            if not isinstance(value, float) or not math.isfinite(value):
                yield f"`of_logits` returned {value!r} for {num_classes} classes"
            if not torch.equal(logits, before):
                yield "the logits changed"
