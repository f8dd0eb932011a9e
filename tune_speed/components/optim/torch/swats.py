"""The torch part of SWATS: torch's Adam, the criterion of the switch, and torch's SGD."""

import math
from typing import Any, NamedTuple, TypedDict, cast

import torch
from torch.optim import Adam, Optimizer

from tune_speed.components.optim.torch import tensor_lists


class Switch(TypedDict):
    """How far the switch is; plain values, so that a checkpoint can hold it."""

    num_steps: int
    num_ratios: int
    """Steps whose ratio was defined: those in which the weights moved along the gradient."""
    average: float
    """Running mean of the ratios, not debiased."""
    square: float
    """Running mean of their squares, not debiased."""
    steps_in_row: int
    """The latest steps that satisfied the criterion, one after another."""
    switch_step: int | None
    """The last step of Adam, from 1; None before the switch."""
    rate: float | None
    """SGD's rate at a schedule's factor of 1, without (1 - beta1); None before the switch."""


class Criterion(NamedTuple):
    """When the switch is made."""

    tolerance: float
    steps_in_row: int
    """So many steps must satisfy it, one after another."""
    forced_step: int | None
    """The step after which it is made at the latest, if the mean is above 0; None: no such one."""


NOT_SWITCHED = Switch(
    num_steps=0, num_ratios=0, average=0.0, square=0.0, steps_in_row=0, switch_step=None, rate=None
)


def next_switch(
    switch: Switch, ratio: float | None, criterion: Criterion, *, beta2: float
) -> Switch:
    """Returns the state after a step of Adam with this ratio, None where it was undefined."""
    num_steps, forced_step = switch["num_steps"] + 1, criterion.forced_step
    if ratio is None:
        return {**switch, "num_steps": num_steps}
    num_ratios = switch["num_ratios"] + 1
    average = beta2 * switch["average"] + (1 - beta2) * ratio
    rate = average / (1 - beta2**num_ratios)
    # After a single ratio the debiased mean is that ratio, and the test would always hold.
    is_steady = num_ratios > 1 and abs(rate - ratio) < criterion.tolerance * rate
    in_row = switch["steps_in_row"] + 1 if is_steady else 0
    is_forced = forced_step is not None and num_steps >= forced_step
    has_switched = rate > 0 and (in_row >= criterion.steps_in_row or is_forced)
    return Switch(
        num_steps=num_steps,
        num_ratios=num_ratios,
        average=average,
        square=beta2 * switch["square"] + (1 - beta2) * ratio**2,
        steps_in_row=in_row,
        switch_step=num_steps if has_switched else None,
        rate=rate if has_switched else None,
    )


class SwatsOptimizer(Adam):
    """Adam until the criterion holds, SGD with momentum from then on.

    At the switch every group's `base_lr` becomes the rate that was found, so that schedules scale
    it; `lr` follows with the factor of that step.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        criterion: Criterion,
        fused: bool | None,
    ) -> None:
        super().__init__(groups, betas=betas, eps=eps, fused=fused)
        self.criterion = criterion
        tensor_lists.shared_state(self)["switch"] = NOT_SWITCHED

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Adam's own reads every weight's step count, which none has after the switch. State
        # that was saved before this class derived from Adam has fewer fields in its groups.
        Optimizer.__setstate__(self, state)
        for group in self.param_groups:
            group.update({**self.defaults, **group})

    @property
    def switch(self) -> Switch:
        """How far the switch is; part of `state_dict()`."""
        # One that an earlier version saved has fewer entries.
        return cast(Switch, {**NOT_SWITCHED, **tensor_lists.shared_state(self)["switch"]})

    def figures(self) -> dict[str, float]:
        """Returns R, the ratios' standard deviation over R, and Adam's last step, where known."""
        switch, known = self.switch, dict[str, float]()
        if switch["num_ratios"]:
            weight = 1 - self.param_groups[0]["betas"][1] ** switch["num_ratios"]
            mean = switch["average"] / weight
            variance = max(0.0, switch["square"] / weight - mean**2)
            known = {"swats_rate": mean, "swats_spread": math.sqrt(variance) / abs(mean)}
        if switch["switch_step"] is not None:
            known["swats_switch_step"] = float(switch["switch_step"])
        return known

    @torch.no_grad()
    def step(self, closure: tensor_lists.Closure | None = None) -> Any:
        loss = tensor_lists.evaluated(closure)
        if self.switch["switch_step"] is not None:
            self._sgd_step()
            return loss
        tensor_lists.shared_state(self)["switch"] = next_switch(
            self.switch, self._adam_step(), self.criterion, beta2=self.param_groups[0]["betas"][1]
        )
        if self.switch["rate"] is not None:
            rate = self.switch["rate"]
            for group in self.param_groups:
                group["lr"] = rate * _factor(group)
                group["base_lr"] = rate
                for weight in group["params"]:
                    # Gives Adam's memory back; SGD starts with an empty buffer.
                    self.state.pop(weight, None)
        return loss

    def _adam_step(self) -> float | None:
        weights = tensor_lists.with_gradients(self.param_groups)
        if not weights:
            return None
        gradient = tensor_lists.flat(tensor_lists.decayed_gradients(self.param_groups))
        moves = torch._foreach_neg(weights)
        super().step()
        # What the weights really did, so that nothing here repeats Adam's arithmetic.
        torch._foreach_add_(moves, weights)
        move = tensor_lists.flat(moves)
        products = torch.stack((torch.dot(move, move), torch.dot(move, gradient)))
        # The one place where the host waits for the device.
        squared, along = products.tolist()
        factor = _factor(self.param_groups[0])
        if factor == 0 or along == 0 or not math.isfinite(squared / along):
            return None
        return float(squared / -along / factor)

    def _sgd_step(self) -> None:
        for group in self.param_groups:
            weights = tensor_lists.with_gradients([group])
            if not weights:
                continue
            beta1 = group["betas"][0]
            tensor_lists.sgd_step(
                self,
                weights,
                fused=group["fused"],
                weight_decay=group["weight_decay"],
                momentum=beta1,
                # Without dampening, momentum adds equal gradients up to 1 / (1 - beta1) times one.
                lr=(1 - beta1) * group["lr"],
                nesterov=False,
            )


def _factor(group: dict[str, Any]) -> float:
    return float(group["lr"] / group["base_lr"])
