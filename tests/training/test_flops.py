import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from helpers.custom.runs import make_own_spec
from helpers.training.tiny import (
    CPU,
    Tiny,
    TinyNetwork,
    make_recipe,
    make_spec,
    make_splits,
    make_workload,
    run,
)
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.base import Shape, Slot, SpeedupConfig
from tune_speed.components.speedups.batches import ProgressiveResizing, SelectiveBackprop
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.components.speedups.network import StochasticDepth
from tune_speed.core.records import RunResult, Timing
from tune_speed.custom.run import OwnRun
from tune_speed.custom.trial import run_own_trial
from tune_speed.runtime import clock, sharing, step_timer
from tune_speed.training import flops, warm_up
from tune_speed.training.build import Job, build_model
from tune_speed.training.checkpoint.checkpoints import identity_of
from tune_speed.training.flops import counted, num_parameters, training_flop_per_sample
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.ranks import ALONE
from tune_speed.training.trial import Allotment

SHAPE = (3, 8, 8)
CONV_MACS = 8 * 8 * (3 * 3 * 3) * 8
LINEAR_MACS = 8 * 8 * 8 * 10


def make_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )


def test_count_is_that_of_the_closed_form() -> None:
    counted = training_flop_per_sample(make_network(), image_shape=SHAPE)
    # Forward, gradients of the weights, and of the inputs, which the first layer does without.
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_deep_network_costs_about_three_forward_passes() -> None:
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    counted = training_flop_per_sample(network, image_shape=(3, 32, 32))
    # He et al. 2016 count 40.8 million multiply-adds for the forward pass.
    assert counted == pytest.approx(3 * 2 * 40.8e6, rel=0.02)


def test_counting_leaves_no_trace() -> None:
    network = make_network().eval()
    network[0].weight.grad = torch.ones_like(network[0].weight)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    training_flop_per_sample(network, image_shape=SHAPE)
    assert torch.equal(torch.get_rng_state(), random)
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(network[0].weight.grad, torch.ones_like(network[0].weight))
    assert all(p.grad is None for p in network[5].parameters()) and not network.training


def test_network_counts_its_own_passes_as_before() -> None:
    network = Tiny(crash_after=1).network(in_channels=3, num_classes=3, image_size=8)
    training_flop_per_sample(network, image_shape=SHAPE)
    network(torch.zeros(2, *SHAPE))


def test_no_gradient_is_needed_outside() -> None:
    with torch.no_grad():
        counted = training_flop_per_sample(make_network(), image_shape=SHAPE)
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_frozen_network_counts_its_forward_pass_alone() -> None:
    network = make_network().requires_grad_(False)
    counted = training_flop_per_sample(network, image_shape=SHAPE)
    assert counted == 2 * (CONV_MACS + LINEAR_MACS)


def test_compiled_network_counts_as_the_network_within() -> None:
    compiled = torch.compile(make_network())
    counted = training_flop_per_sample(compiled, image_shape=SHAPE)
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_network_of_sequences_has_no_count() -> None:
    assert training_flop_per_sample(nn.LSTM(4, 4), image_shape=SHAPE) is None


def test_network_that_the_counter_does_not_know_has_no_count() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3))
    assert training_flop_per_sample(network, image_shape=SHAPE) is None


def test_parameters_count_once_trainable_or_not() -> None:
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    assert num_parameters(network) == 269_722
    layer = nn.Linear(4, 4).requires_grad_(False)
    assert num_parameters(nn.Sequential(layer, layer)) == 20


@pytest.mark.parametrize("rule", ["linear", "uniform"])
def test_skipped_blocks_count_as_often_as_they_are_executed(rule: str) -> None:
    """Huang et al. 2016: of L blocks (3L - 1)/4 and L/2; ResNet-20's nine cost the same but two."""
    config = StochasticDepth(rule=rule)
    plain = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    config.change_model(network, num_classes=10, seed=0)
    state = config.state(network)["draws"]
    whole, counted, again = (
        training_flop_per_sample(each, image_shape=(3, 32, 32))
        for each in (plain, network, network)
    )
    assert whole is not None and counted == again
    # By hand: multiply-adds of two convolutions a block, of which the first of a stage has half of
    # its inputs' channels, at a quarter of the pixels; three passes each.
    conv = 32 * 32 * 9 * 16 * 16
    blocks = [2 * conv] * 3 + [1.5 * conv, *[2 * conv] * 2] * 2
    survivals = config.survivals(9)
    saved = sum((1 - p) * 3 * 2 * block for p, block in zip(survivals, blocks, strict=True))
    assert counted == pytest.approx(whole - saved, rel=1e-6)
    assert torch.equal(config.state(network)["draws"], state)


def test_a_forward_pass_alone_is_counted_without_the_other_two() -> None:
    counted = training_flop_per_sample(make_network(), image_shape=SHAPE, has_backward=False)
    assert counted == 2 * (CONV_MACS + LINEAR_MACS)


# --- Of runs


def tiny_flop(size: int, *, backward: bool = True) -> float:
    conv, linear = size * size * 9 * 4, 4 * 3
    return 2.0 * (2 * conv + 3 * linear) if backward else 2.0 * (conv + linear)


def test_run_counts_the_operations_of_all_its_samples_and_their_rate() -> None:
    result = run(make_recipe(epochs=3.0))
    assert result.flop == 60 * tiny_flop(6)
    assert result.flop_per_s == pytest.approx(result.flop / result.clocks.train_s)
    later = result.model_copy(update={"init_s": result.clocks.train_s / 2})
    assert later.flop_per_s == pytest.approx(2 * result.flop_per_s), "no steps are taken meanwhile"
    assert result.model_copy(update={"flop": None}).flop_per_s is None


def test_run_counts_images_at_the_size_at_which_they_are_seen() -> None:
    resizing = ProgressiveResizing(initial_scale=0.5, delay_frac=0.5, finetune_frac=0.5)
    result = run(make_recipe(epochs=2.0, speedups=Speedups(resolution=resizing)))
    assert result.flop == 20 * tiny_flop(4) + 20 * tiny_flop(6), "sizes are multiples of 4"


def test_run_counts_samples_that_only_go_forward_as_that() -> None:
    half = SelectiveBackprop(start=0.5, end=1.0, keep=0.5)
    result = run(make_recipe(epochs=2.0, batch_size=10, speedups=Speedups(selection=half)))
    chosen_from = 20 * tiny_flop(6, backward=False) + 10 * tiny_flop(6)
    assert result.flop == 20 * tiny_flop(6) + chosen_from


def test_network_that_cannot_be_copied_trains_uncounted(monkeypatch, caplog):
    class Lonely(TinyNetwork):
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("there is one of me")

    class LonelyConfig(Tiny):
        def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
            return Lonely(self, in_channels, num_classes)

    monkeypatch.setattr(flops, "_COUNTED", {})
    result = run(make_recipe(model=LonelyConfig()), make_splits())
    assert result.steps == 6 and (result.flop, result.flop_per_s) == (None, None)
    assert "there is one of me" in caplog.text


def test_network_is_counted_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "_COUNTED", {})
    calls: list[object] = []
    real = flops.step_flop
    monkeypatch.setattr(flops, "step_flop", lambda *a, **k: calls.append(a) or real(*a, **k))
    runs = [run(make_recipe(), seed=seed) for seed in (0, 1)]
    assert len(calls) == 1 and runs[0].flop == runs[1].flop
    wider = run(make_recipe(), make_splits(channels=2))
    assert len(calls) == 2 and wider.flop > runs[0].flop


class Freezing(SpeedupConfig):
    slot: ClassVar[Slot] = "depth"

    def begin_step(self, model: nn.Module, shape: Shape) -> None:
        model.conv.requires_grad_(False)


def test_counting_trains_no_other_part_of_the_network_than_before() -> None:
    recipe = make_recipe()
    speedups = recipe.speedups.model_copy(update={"depth": Freezing()})
    recipe = recipe.model_copy(update={"speedups": speedups})
    job = Job(make_workload(), recipe, make_splits(), 0, CPU, "validation", ALONE)
    model = build_model(recipe, job.splits, seed=0, device=CPU)
    conv, linear = 6 * 6 * 9 * 4, 4 * 3
    # The frozen layer's input and the norm's weights: no products.
    assert list(counted(job, model).values()) == [2.0 * (conv + 3 * linear)]
    assert all(parameter.requires_grad for parameter in model.parameters())


POWER_W = 120.0
ABOUT = pytest.approx(POWER_W, rel=0.25)


@pytest.fixture(autouse=True)
def _metered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(MODELS, "tiny", Tiny)
    monkeypatch.setattr(warm_up, "_idle_w", {})
    # Tests in this folder have short windows; other work on the machine disturbs some.
    monkeypatch.setattr(clock, "SHORTEST_METERED_S", 0.02)
    for module in (step_timer, sharing):
        monkeypatch.setattr(module, "MOST_DELAYED", 1.0)
    monkeypatch.setattr(
        warm_up, "energy_meter", lambda device: lambda: POWER_W * time.perf_counter()
    )
    yield


def metered(*, max_cotenants: int = 0, **fields: Any) -> RunResult:
    allotment = Allotment(device="cpu", max_cotenants=max_cotenants)
    spec = make_spec(**fields).model_copy(update={"allotment": allotment})
    return finish(run_trial(spec), on_report=lambda record: None).runs[0]


def test_window_says_the_power_of_a_run_that_shares_its_device() -> None:
    result = metered(max_cotenants=1, epochs=1.0)
    assert result.timing is Timing.ISOLATED
    assert [window.power_w for window in result.windows] == [ABOUT]
    assert result.power_w == ABOUT
    assert result.idle_power_w == ABOUT


def test_spans_of_training_say_the_power_of_a_run_that_is_alone() -> None:
    result = metered(epochs=100.0)
    assert (result.timing, result.power_w) == (Timing.EXCLUSIVE, ABOUT)


def test_baseline_is_measured_once_in_a_process() -> None:
    began_s = time.perf_counter()
    assert metered().idle_power_w == ABOUT
    first_s = time.perf_counter() - began_s
    warm_up._idle_w[next(iter(warm_up._idle_w))] = 7.0
    assert first_s > 0.5 and metered().idle_power_w == 7.0


def test_prices_of_the_study_are_recorded_and_a_checkpoint_is_of_no_price() -> None:
    free, spec = make_spec(), make_spec()
    allotment = spec.allotment.model_copy(update={"price_per_hour": {"H200": 3.5}})
    spec = spec.model_copy(update={"allotment": allotment})
    record = finish(run_trial(spec), on_report=lambda record: None)
    assert record.prices == {"H200": 3.5}
    cpu = torch.device("cpu")
    assert identity_of(spec, cpu) == identity_of(free, cpu)


def test_training_function_has_its_power_too() -> None:
    def train(params: dict[str, Any], run: OwnRun) -> None:
        with run.timed():
            time.sleep(0.4)
            run.step()
        run.evaluated(step=1, metric=0.95, epoch=1.0, samples=1)

    result = run_own_trial(make_own_spec(), train, on_report=lambda record: None).runs[0]
    assert (result.timing, result.power_w) == (Timing.EXCLUSIVE, ABOUT)
    assert result.idle_power_w == ABOUT
