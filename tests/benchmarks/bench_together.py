"""Trials trained together in one process, their parameters stacked, against one process a trial.

    python tests/benchmarks/bench_together.py                         # CPU, about 5 minutes
    python tests/benchmarks/bench_together.py --device cuda --processes 1 \\
        --cases resnet20-32-b32 resnet20-32-b128 --members 2 4 8

M members have the same network and batch size, and learning rate, schedule, weights and order of
the images of their own. Together, `torch.func.vmap` maps the network and its loss over stacked
parameters and batch statistics; the members' losses are independent, so the gradient of their sum
is each one's own. SGD with momentum runs on the stacked tensors, rates a vector over members.

First the check, in fp32: each member's losses are set beside those of its solo run by our own
`Stepper.learn` on the same batches, for `--check-steps` steps. The first must agree to 1e-5. Then
rounding grows, as training is chaotic: how fast is seen on the same solo run in the other memory
layout, which differs by rounding alone. Together may be ten times as far off, or `--tolerance`.

Then the speed, as members times steps a second, medians of `--rounds` interleaved spans:

- solo: one process, one thread, one member after the other;
- solo, P processes at once, one thread each: what a search does today;
- together: one process, M members, one thread, and on a CPU also P threads;
- together, P processes at once with M / P members each;
- on a GPU, together with the whole step as a CUDA graph (the solo step is by single kernels: set
  the result beside `bench_train_loop.py --ways graph` as well).

The gain is the best of together over the best of solo. The bar for a place in the package: 1.3. In
brackets stands the gain in members·steps a second of processor time, of one process and thread
each: on a machine that others use too it is the better figure. (On a GPU it says how much of the
host's work is spared.)
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, pairwise
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.schedules.one_cycle import OneCycle
from tune_speed.components.speedups.base import Shape
from tune_speed.data.base import Images
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.training.build import build_model, open_loader
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper

TOTAL_STEPS = 200
"""Length of the schedule; steps beyond it keep the last rate."""
SPAN_S = 0.6
NUM_IMAGES = 1280
BAR = 1.3
FIRST_STEP = 1e-5
"""Largest difference of a loss in the first step, as a share of it."""


class Mlp(ModelConfig):
    """Pixels, 128 hidden units, logits."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        pixels = in_channels * image_size**2
        hidden, logits = nn.Linear(pixels, 128), nn.Linear(128, num_classes)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), logits)


class SmallCnn(ModelConfig):
    """Two convolutions with batch norm, and a linear layer."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        widths = (in_channels, 16, 32)
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(widths):
            conv = nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(wide), nn.ReLU()]
        return nn.Sequential(*layers, Mean(), nn.Linear(widths[-1], num_classes))


class Mean(nn.Module):
    """The mean over all pixels."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


class Case(NamedTuple):
    """A network on images, and its batch."""

    model: ModelConfig
    size: int
    batch_size: int


CASES = {
    "mlp-8": Case(Mlp(), 8, 64),
    "cnn-8": Case(SmallCnn(), 8, 64),
    "resnet20-8": Case(ResNet20(), 8, 64),
    "resnet20-32": Case(ResNet20(), 32, 64),
    "resnet20-32-b32": Case(ResNet20(), 32, 32),
    "resnet20-32-b128": Case(ResNet20(), 32, 128),
}


def make_splits(size: int) -> Splits:
    """Returns scikit-learn's digits of 8 x 8 pixels, or random colour images of another size."""
    if size == 8:
        digits = load_digits()
        pixels = (digits.images * 15).astype(np.uint8)[:NUM_IMAGES, :, :, None]
        labels = digits.target[:NUM_IMAGES].astype(np.int64)
    else:
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (NUM_IMAGES, size, size, 3), np.uint8)
        labels = generator.integers(0, 10, NUM_IMAGES)
    images = Images(pixels, labels)
    mean, std = channel_statistics(pixels)
    return Splits(images, images, images, mean, std, 10, split_hash="")


def member_recipe(case: Case, number: int) -> Recipe:
    """Returns the recipe of one member: rate and schedule are its own."""
    recipe = Recipe(
        model=ResNet20(),
        optimizer=Sgd(lr=0.02 * 1.3**number, momentum=0.9, weight_decay=5e-4 / (number + 1)),
        lr_schedule=OneCycle(pct_start=0.2 + 0.02 * number, div_factor=5.0 + number),
        epochs=10.0,
        batch_size=case.batch_size,
    )
    return recipe.model_copy(update={"model": case.model})


def batches_of(
    recipe: Recipe, splits: Splits, *, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Returns a member's batches, without end."""
    loader = open_loader(recipe, splits.train, splits, seed=seed, device=device)
    return chain.from_iterable(loader.epoch(number) for number in count())


def fresh_model(recipe: Recipe, splits: Splits, *, seed: int, device: torch.device) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(recipe, splits, seed=seed, device=device).train()


class Solo:
    """One member, by the package's own step."""

    def __init__(
        self, case: Case, number: int, device: torch.device, *, channels_last: bool = True
    ) -> None:
        splits = make_splits(case.size)
        recipe = member_recipe(case, number)
        self.recipe = recipe.model_copy(update={"channels_last": channels_last})
        self.model = fresh_model(self.recipe, splits, seed=number, device=device)
        self._stepper = Stepper(self.model, self.model, self.recipe, device=device)
        self._batches = batches_of(self.recipe, splits, seed=number, device=device)
        self._shape, self._steps = Shape(case.size, case.size), 0

    def step(self) -> Tensor:
        """Returns the mean loss of the step, (1,)."""
        self._steps = min(self._steps + 1, TOTAL_STEPS)
        frac = self._steps / TOTAL_STEPS
        factors = self.recipe.lr_schedule.factors(frac, step_frac=1 / TOTAL_STEPS)
        set_rates(self._stepper.optimizer, factors)
        assert isinstance(self.recipe.batch_size, int)
        group = Group(self.recipe.batch_size, [next(self._batches)])
        loss_sum = self._stepper.learn(group, self._shape, frac=frac)
        return (loss_sum / self.recipe.batch_size).reshape(1)


class Together:
    """Several members in one process, each tensor of theirs stacked along a first dimension M."""

    def __init__(self, case: Case, numbers: list[int], device: torch.device) -> None:
        splits = make_splits(case.size)
        self._recipes = [member_recipe(case, number) for number in numbers]
        models = [
            fresh_model(recipe, splits, seed=number, device=device)
            for recipe, number in zip(self._recipes, numbers, strict=True)
        ]
        self._parameters, self.buffers = stack_module_state(models)
        self._weights = list(self._parameters.values())
        self._momenta = [torch.zeros_like(weight) for weight in self._weights]
        self._batches = [
            batches_of(recipe, splits, seed=number, device=device)
            for recipe, number in zip(self._recipes, numbers, strict=True)
        ]
        self._losses = _mapped(models[0])
        self._device, self._steps = device, 0

    def step(self) -> Tensor:
        """Returns the mean losses of the step, (M,)."""
        self._steps = min(self._steps + 1, TOTAL_STEPS)
        batches = [next(each) for each in self._batches]
        images, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
        return self._advance(images, labels, self._settings())

    def _advance(self, images: Tensor, labels: Tensor, settings: Tensor) -> Tensor:
        losses = self._losses(self._parameters, self.buffers, images, labels)
        self._update(torch.autograd.grad(losses.sum(), self._weights), settings)
        return losses.detach()

    @torch.no_grad()
    def _update(self, gradients: tuple[Tensor, ...], settings: Tensor) -> None:
        """SGD with Nesterov's momentum, as `optim.Sgd`; rates are vectors (M,)."""
        rates, momenta, decays = settings
        for weight, velocity, gradient in zip(self._weights, self._momenta, gradients, strict=True):
            shape = (-1, *[1] * (weight.ndim - 1))
            rate, momentum = rates.view(shape), momenta.view(shape)
            if weight.ndim > 2:  # Norms and biases, (M, C), are not decayed.
                gradient = gradient + decays.view(shape) * weight
            velocity.mul_(momentum).add_(gradient)
            weight.sub_(rate * (gradient + momentum * velocity))

    def _settings(self) -> Tensor:
        """Returns rates, momenta and decays of the step, (3, M)."""
        frac, rows = self._steps / TOTAL_STEPS, list[tuple[float, float, float]]()
        for recipe in self._recipes:
            assert isinstance(recipe.optimizer, Sgd)
            factors = recipe.lr_schedule.factors(frac, step_frac=1 / TOTAL_STEPS)
            momentum = recipe.optimizer.momentum if factors.momentum is None else factors.momentum
            rate = recipe.optimizer.lr * factors.lr
            rows.append((rate, momentum, recipe.optimizer.weight_decay))
        return torch.tensor(rows).to(self._device, non_blocking=True).T


class Recorded(Together):
    """The same, with its step as a CUDA graph after the first ones."""

    _graph: torch.cuda.CUDAGraph | None = None

    def _advance(self, images: Tensor, labels: Tensor, settings: Tensor) -> Tensor:
        if self._graph is None:
            return self._record(images, labels, settings)
        for place, value in zip(self._inputs, (images, labels, settings), strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._output.clone()

    def _record(self, *inputs: Tensor) -> Tensor:
        """Takes a few steps by single kernels, as cuDNN tries its own, and records the next."""
        self._inputs = tuple(each.clone() for each in inputs)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                losses = super()._advance(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = super()._advance(*self._inputs)
        return losses


def _mapped(network: nn.Module) -> Callable[..., Tensor]:
    """Returns the mean losses (M,) of stacked members.

    Batch norm writes its running statistics in place, which vmap allows as they are stacked too.
    """

    def loss(parameters: Any, buffers: Any, images: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(network, (parameters, buffers), (images,))
        return functional.cross_entropy(logits, labels)

    mapped: Callable[..., Tensor] = vmap(loss, randomness="different")
    return mapped


class Check(NamedTuple):
    """Largest differences of a loss from the solo run's, as shares of it."""

    first: float
    """In the first step."""
    most: float
    """In all steps."""
    rounding: float
    """In all steps, of the solo run in the other memory layout."""
    statistics: float
    """Of a batch statistic at the end, over its largest value."""


def check(case: Case, members: int, steps: int, device: torch.device) -> Check:
    """Compares members that train together with the same ones alone."""
    solos = [Solo(case, number, device) for number in range(members)]
    others = [Solo(case, number, device, channels_last=False) for number in range(members)]
    together = Together(case, list(range(members)), device)
    apart, rounded = (
        torch.stack([torch.cat([solo.step() for solo in each]) for _ in range(steps)])
        for each in (solos, others)
    )
    stacked = torch.stack([together.step() for _ in range(steps)])
    off, rounding = (((losses - apart).abs() / apart).amax(dim=1) for losses in (stacked, rounded))
    statistics_off = 0.0
    for name, buffer in together.buffers.items():
        alone = torch.stack([dict(solo.model.named_buffers())[name] for solo in solos]).float()
        difference = (buffer.float() - alone).abs().max() / alone.abs().max()
        statistics_off = max(statistics_off, difference.item())
    return Check(off[0].item(), off.max().item(), rounding.max().item(), statistics_off)


def serve(pipe: connection.Connection, device_name: str) -> None:
    """What a process does: spans of steps, as it is told by `WorkerGroup.span`."""
    device, sides = torch.device(device_name), dict[Any, Solo | Together]()
    set_up_process(device, cpu_threads=1)
    torch.backends.cudnn.benchmark = True  # As in a training.
    synchronize = synchronizer(device)
    while (told := pipe.recv()) is not None:
        name, first, members, threads, is_recorded, steps = told
        torch.set_num_threads(threads)
        key = name, members, is_recorded
        if key not in sides:
            numbers = list(range(first, first + members))
            case, kind = CASES[name], Recorded if is_recorded else Together
            sides[key] = kind(case, numbers, device) if members else Solo(case, 0, device)
        began_s = time.process_time()
        for _ in range(steps):
            sides[key].step()
        synchronize()
        pipe.send(time.process_time() - began_s)


class Side(NamedTuple):
    """One way to train M members."""

    name: str
    processes: int
    members: int
    """Of each process; 0: solo."""
    threads: int = 1
    is_recorded: bool = False

    @property
    def at_once(self) -> int:
        """Members that one step of all processes advances."""
        return self.processes * max(1, self.members)


class WorkerGroup:
    """The processes, started once."""

    def __init__(self, size: int, device: str) -> None:
        # Threads that wait spin by default, and so take cores from whoever they wait for.
        os.environ["OMP_WAIT_POLICY"] = "passive"
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(size)]
        self._pipes = [here for here, _ in pipes]
        for _, there in pipes:
            context.Process(target=serve, args=(there, device), daemon=True).start()
            there.close()  # So that a process that fails is not waited for.

    def close(self) -> None:
        """Ends them."""
        for pipe in self._pipes:
            pipe.send(None)

    def span(self, case: str, side: Side, steps: int) -> tuple[float, float]:
        """Returns the seconds until the last has done its steps, and those of processor time."""
        chosen = self._pipes[: side.processes]
        began = time.perf_counter()
        for number, pipe in enumerate(chosen):
            first = number * side.members
            pipe.send((case, first, side.members, side.threads, side.is_recorded, steps))
        cpu_s = sum(pipe.recv() for pipe in chosen)
        return time.perf_counter() - began, cpu_s


def sides_of(members: int, processes: int, device: str) -> list[Side]:
    """Returns all ways to train so many."""
    sides = [Side("solo", 1, 0), Side("together", 1, members)]
    if processes > 1:
        sides.append(Side(f"solo x{processes}", processes, 0))
    if device != "cpu":
        sides.append(Side("together, graph", 1, members, is_recorded=True))
    elif processes > 1:
        sides.append(Side(f"together, {processes} threads", 1, members, processes))
    if processes > 1 and members >= 2 * processes:
        sides.append(Side(f"together x{processes}", processes, members // processes))
    return sides


class Rate(NamedTuple):
    """Members·steps."""

    per_s: float
    per_cpu_s: float


def compare(crew: WorkerGroup, case: str, sides: list[Side], rounds: int) -> dict[Side, Rate]:
    """Returns the median rates of each side, in turns."""
    rates: dict[Side, list[Rate]] = {side: [] for side in sides}
    steps: dict[Side, int] = {}
    for number in range(rounds + 1):  # The first is not counted.
        for side in sides if number % 2 else reversed(sides):
            if side not in steps:
                crew.span(case, side, 1)  # Builds what the side needs, and fills caches.
                steps[side] = max(2, round(SPAN_S / crew.span(case, side, 1)[0]))
            done = steps[side] * side.at_once
            rates[side].append(Rate(*(done / s for s in crew.span(case, side, steps[side]))))
    return {
        side: Rate(*map(statistics.median, zip(*found[1:], strict=True)))
        for side, found in rates.items()
    }


def row(case: str, members: int, rates: dict[Side, Rate]) -> str:
    """Returns the line of a case."""
    solo = max(rate.per_s for side, rate in rates.items() if not side.members)
    stacked = max(rate.per_s for side, rate in rates.items() if side.members)
    alone, together = (rates[Side(*key)] for key in (("solo", 1, 0), ("together", 1, members)))
    gain, per_core = stacked / solo, together.per_cpu_s / alone.per_cpu_s
    cells = ", ".join(f"{side.name} {rate.per_s:.4g}" for side, rate in rates.items())
    return (
        f"{case:12} M={members:2}: members·steps/s: {cells}; gain {gain:.2f}"
        f" ({per_core:.2f} a processor second): {'reached' if gain >= BAR else 'missed'}"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", default=list(CASES)[:4], choices=CASES)
    parser.add_argument("--members", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--processes", type=int, default=2, help="at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check-steps", type=int, default=10)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--json", type=Path, help="also write the rates there")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = resolve_device(arguments.device)
    set_up_process(device, cpu_threads=1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"torch {torch.__version__}, {describe_device(device)}, fp32, n = {arguments.rounds}")
    print(f"losses of 4 members against their solo runs, {arguments.check_steps} steps:")
    for name in arguments.cases:
        found = check(CASES[name], 4, arguments.check_steps, device)
        may = max(arguments.tolerance, 10 * found.rounding)
        holds = found.first <= FIRST_STEP and found.most <= may
        cells = ", ".join(f"{field} {value:.1e}" for field, value in found._asdict().items())
        print(f"  {name:12} {cells}: {'holds' if holds else 'MISSED'}", flush=True)
    crew, found_rates = WorkerGroup(arguments.processes, str(device)), list[dict[str, Any]]()
    for name in arguments.cases:
        for members in arguments.members:
            sides = sides_of(members, arguments.processes, device.type)
            rates = compare(crew, name, sides, arguments.rounds)
            print(row(name, members, rates), flush=True)
            per_s = {side.name: rate.per_s for side, rate in rates.items()}
            found_rates.append({"case": name, "members": members, "per_s": per_s})
    crew.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(found_rates, indent=2))


if __name__ == "__main__":
    main()
