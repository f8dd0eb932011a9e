"""Recipes whose order matters, timed in turn (A B A B) in one process, so that none has luck."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tune_speed.components.speedups.base import Shape
from tune_speed.core.records import StepTime
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device import device_key, synchronizer
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.build import Job, build_forward
from tune_speed.training.loop import set_up
from tune_speed.training.objective import load_splits
from tune_speed.training.preparation import without_trace
from tune_speed.training.step.step import Forward, Stepper
from tune_speed.training.trial import TrialSpec
from tune_speed.training.warm_up import key_of, measure, warm_up
from tune_speed.training.worker import open_device

LABEL = "side-by-side"


class _Contender:
    """One recipe, ready to take steps that leave no trace."""

    def __init__(self, spec: TrialSpec, stack: ExitStack) -> None:
        device, splits = open_device(spec.allotment), load_splits(spec.workload)
        self.job = job = Job(
            spec.workload, spec.recipe, splits, spec.seed, device, spec.evaluated_on
        )
        self._model, self._loader = set_up(job)
        stack.callback(self._loader.close)
        self._forward: Forward = build_forward(self._model, spec.recipe)
        for shape in job.shapes:
            warm_up(job, self._model, self._forward, self._loader, shape)

    def window(self, shape: Shape, clock: Clock, sharing: Sharing) -> StepTime | None:
        """Returns one more window of the steps of that shape, None where it could not be had."""
        key = key_of(self.job, self._loader, shape)
        with without_trace(self._model, device=self.job.device):
            stepper = Stepper.still(
                self._model, self._forward, self.job.recipe, device=self.job.device
            )
            return measure(stepper, self._loader, shape, key=key, clock=clock, sharing=sharing)


def time_side_by_side(specs: Sequence[TrialSpec], *, rounds: int) -> Iterator[StepTime]:
    """Yields windows of the recipes' steps in turn, on the first one's device; none is `auto`."""
    device = open_device(specs[0].allotment)
    with ExitStack() as stack:
        sharing = stack.enter_context(
            Sharing.open(
                device_key(device),
                study=specs[0].study,
                trial=LABEL,
                may_have_company=True,
                longest_pause_s=specs[0].allotment.longest_pause_s,
            )
        )
        clock = Clock(synchronize=synchronizer(device), turnstile=sharing.turnstile)
        contenders = [_Contender(spec, stack) for spec in specs]
        for _ in range(rounds):
            for contender in contenders:
                for shape in contender.job.shapes:
                    window = contender.window(shape, clock, sharing)
                    if window is not None:
                        yield window
