"""What holds for every metric. It is an object, not a configuration."""

import math

import torch

from tune_speed.components.metrics.base import Metric
from tune_speed.components.plugins.validation import metric_mistakes
from tune_speed.core.records import Clocks, Evaluation, RunResult, Status
from tune_speed.testing.entry import ContractError, Contracts

SHOWN_BY = ("`tune-speed ", "`Results.")


class MetricContracts(Contracts[Metric]):
    """What holds for every metric."""

    def metric_has_the_form_of_its_table(self) -> None:
        """A sentence, unit and source, as `tune-speed list metrics` prints, and functions."""
        for mistake in metric_mistakes(self.entry):
            raise ContractError(f"{self._label} {mistake}.")
        self._require(
            len(self.entry.about) > 20 and self.entry.about.endswith("."),
            "`about` must be a sentence that says what it is",
            seen=f"it is {self.entry.about!r}",
            fix="Write more than 20 characters, with a full stop.",
        )

    def metric_of_a_run_is_a_number_or_none(self) -> None:
        """Whatever a run's record lacks."""
        if self.entry.of_run is None:
            self._require(
                any(place in self.entry.about for place in (f"`{self.name}`", *SHOWN_BY)),
                "`about` must name what computes or shows a metric that is not of one run",
                seen=f"neither `{self.name}` nor a command is in {self.entry.about!r}",
                fix="Give `of_run`, or say which function computes it or which command shows it.",
            )
            return
        # The record that lacks most: no evaluation, no step, no clock.
        failed = RunResult(status=Status.FAILED, seed=0, stop_reason="failed")
        for run, what in ((failed, "a run that failed at once"), (_finished_run(), "a run")):
            fix = "Return None where the record lacks what it needs."
            with self._working(f"`of_run` must answer for {what}", fix=fix):
                value = self.entry.of_run(run)
            self._require(
                value is None or isinstance(value, float),
                f"`of_run` must return a float or None for {what}",
                seen=f"it returned {value!r}",
                fix="Convert by `float(…)`.",
            )

    def metric_of_logits_is_a_number_and_leaves_them_alone(self) -> None:
        """As it may be a target, that of any logits of a classifier."""
        if self.entry.of_logits is None:
            return
        # Two classes as well: a metric of the best five, say, has too few there.
        for num_classes in (2, 10):
            generator = torch.Generator().manual_seed(0)
            logits = torch.randn((32, num_classes), generator=generator)
            labels = torch.randint(num_classes, (32,), generator=generator)
            before = logits.clone()
            fix = "It is given logits (N, K), float32, and labels (N,), int64."
            with self._working(f"`of_logits` must answer for {num_classes} classes", fix=fix):
                value = self.entry.of_logits(logits, labels)
            self._require(
                isinstance(value, float) and math.isfinite(value),
                "`of_logits` must return a finite float",
                seen=f"it returned {value!r}",
                fix="Convert by `float(…)`.",
            )
            claim = "`of_logits` must leave the logits as they are"
            fix = "Work on a copy: `logits.clone()`."
            self._require(bool((logits == before).all()), claim, seen="they changed", fix=fix)


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
        flop=6.4e8,
        step_time_ms=100.0,
        peak_memory_gib=0.5,
        memory_limit_gib=1.0,
        batch_size=32,
        accumulation_steps=1,
        device="cpu (1 threads, test)",
    )
