import copy
import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training.tiny import CPU, Tiny, make_recipe, make_splits, make_workload, run, to_end
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Adam, Sgd, Swats
from tune_speed.components.schedules.decays import OneCycle, ReduceOnPlateau
from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.loaders.base import Planned
from tune_speed.data.loaders.configs import LoaderConfig, Resident, Streaming
from tune_speed.data.loaders.streaming import StreamingLoader
from tune_speed.runtime.clock import Clock, Span, Waits
from tune_speed.runtime.sharing import KnownSteps, Sharing, Tenancy
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training import build, loop, warm_up
from tune_speed.training import evaluate as scoring
from tune_speed.training.build import Job
from tune_speed.training.evaluate import Scores
from tune_speed.training.ranks import ALONE
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.warm_up import LoneImage

SHAPE = Shape(6, 6)


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> Clock:
        return Clock(synchronize=lambda: None, now=lambda: self.seconds)

    def pass_(self, seconds: float) -> bool:
        self.seconds += seconds
        return False


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    built: list[nn.Module] = []
    original = loop.build_model

    def build(*args: Any, **kwargs: Any) -> nn.Module:
        built.append(original(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(loop, "build_model", build)
    return built


@pytest.fixture
def rates() -> Iterator[list[dict[str, float]]]:
    seen: list[dict[str, float]] = []

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        seen.append({name: optimizer.param_groups[0][name] for name in ("lr", "momentum")})

    hook = register_optimizer_step_pre_hook(note)
    yield seen
    hook.remove()


def losses(result: RunResult) -> list[tuple[float | None, float | None]]:
    return [(e.loss, e.train_loss) for e in result.evaluations]


def fake_accuracies(monkeypatch: pytest.MonkeyPatch, *accuracies: float) -> None:
    remaining = iter(accuracies)

    def evaluate(*args: object, **kwargs: object) -> Scores:
        return Scores(accuracy=next(remaining), macro_f1=0.0, loss=1.0)

    monkeypatch.setattr(scoring, "evaluate", evaluate)


# --- Steps and rates


@pytest.mark.parametrize(
    ("accumulation_steps", "epochs", "steps", "samples"),
    [
        (1, 1.0, 3, 20),  # 8 + 8 + 4
        (1, 1.5, 4, 28),  # 4.5 steps, to the even number: an epoch and 8
        (2, 2.0, 4, 40),  # 16 + 4 each
        (2, 0.5, 1, 16),
        (4, 3.0, 3, 60),  # one group of 20 each
    ],
)
def test_run_does_the_right_number_of_optimizer_steps(
    rates: list[object], accumulation_steps: int, epochs: float, steps: int, samples: int
) -> None:
    result = run(make_recipe(accumulation_steps=accumulation_steps, epochs=epochs))
    assert (result.steps, result.samples) == (steps, samples)
    assert len(rates) == 1 + steps
    assert result.final is not None and result.final.epoch == samples / 20


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_rates_follow_torchs_one_cycle_step_by_step(rates, accumulation_steps):
    recipe = make_recipe(
        optimizer=Sgd(lr=0.3),
        lr_schedule=OneCycle(pct_start=0.4),
        epochs=5.0,
        accumulation_steps=accumulation_steps,
    )
    total_steps = run(recipe).steps
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps, pct_start=0.4)
    assert (
        len(rates) == 1 + total_steps == 1 + 15 // accumulation_steps + (accumulation_steps - 1) * 3
    )
    for number, ours in enumerate(rates[1:]):
        group = optimizer.param_groups[0]
        assert ours == pytest.approx({k: group[k] for k in ("lr", "momentum")}, rel=1e-9)
        optimizer.step()
        if number < total_steps - 1:
            schedule.step()


def test_each_epoch_of_groups_covers_every_sample_once() -> None:
    splits = make_splits()
    recipe = make_recipe(accumulation_steps=2)
    loader = build.open_dummy(recipe, splits, num_samples=20, device=CPU)
    steps = open_steps(loader, recipe, [(SHAPE, 4)], Waits())
    sizes = [[len(labels) for _, labels in group.micro_batches] for _, group in steps]
    assert sizes == [[8, 8], [4], [8, 8], [4]]


def test_loader_is_begun_once_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    original = StreamingLoader._begin
    monkeypatch.setattr(
        StreamingLoader, "_begin", lambda self, epoch: (begun.append(epoch), original(self, epoch))
    )
    run(make_recipe(loader=Streaming(), epochs=3.0))
    assert begun == [0]


def test_training_learns() -> None:
    recipe = make_recipe(model=Tiny(norm="batch"), optimizer=Adam(lr=0.05), epochs=30.0)
    result = run(recipe, make_splits(60, 30))
    assert result.final is not None and result.final.accuracy > 0.9
    first, last = result.evaluations[1], result.evaluations[-1]
    assert (first.train_loss or 0) > 2 * (last.train_loss or 0) > 0


def test_train_loss_is_the_mean_over_the_samples_since_the_last_evaluation() -> None:
    still = make_recipe(optimizer=Sgd(lr=1e-30), epochs=2.0)
    splits = make_splits(20)
    same = splits._replace(validation=splits.train)
    untrained, *others = run(still, same).evaluations
    assert untrained.train_loss is None
    assert [e.train_loss for e in others] == pytest.approx([untrained.loss] * 2, rel=1e-5)


# --- Determinism


DROPOUT = Tiny(norm="batch", dropout=0.3)
AUGMENTATION = Augmentation(pad=1, flip="random", cutout=2)


def test_evaluations_record_what_the_optimizer_says_of_itself() -> None:
    result = run(make_recipe(optimizer=Swats(lr=0.01, switch_at_step=3), epochs=3.0))
    first, *later = (evaluation.values for evaluation in result.evaluations)
    assert first == {}
    assert all(values["swats_rate"] > 0 and values["swats_spread"] >= 0 for values in later)
    assert later[-1]["swats_switch_step"] >= 3


def test_seed_fixes_losses_and_weights(models: list[nn.Module]) -> None:
    recipe = make_recipe(model=DROPOUT, augmentation=AUGMENTATION)
    first, second, other = (losses(run(recipe, seed=seed)) for seed in (1, 1, 2))
    assert first == second != other
    states = [list(model.state_dict().values()) for model in models]
    assert all(map(torch.equal, states[0], states[1]))
    assert not all(map(torch.equal, states[0], states[2]))


@pytest.mark.parametrize("loader", [Streaming(), Streaming(workers=2)], ids=["local", "workers"])
def test_loaders_give_the_same_weights(models: list[nn.Module], loader: LoaderConfig) -> None:
    for config in (Resident(), loader):
        run(make_recipe(model=DROPOUT, augmentation=AUGMENTATION, loader=config))
    resident, other = (list(model.state_dict().values()) for model in models)
    assert all(map(torch.equal, resident, other))


def test_accumulation_in_the_loop_gives_the_weights_of_the_large_batch(models):
    run(make_recipe(batch_size=16))
    run(make_recipe(batch_size=4, accumulation_steps=4))
    for whole, parts in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(whole, parts, atol=1e-6, rtol=1e-5)


def test_evaluating_more_often_changes_nothing() -> None:
    def evaluated(workload: Any) -> list[Any]:
        return losses(
            to_end(loop.train(Job(workload, make_recipe(), make_splits(), seed=0, device=CPU)))
        )

    often = evaluated(make_workload(eval_every_samples=5))
    once = evaluated(make_workload(eval_every_samples=1000))
    assert often[-1][0] == once[-1][0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_close_to_fp32(precision: str) -> None:
    exact, low = (
        run(make_recipe(precision=p, optimizer=Sgd(lr=0.02), epochs=5.0), make_splits(60))
        for p in ("fp32", precision)
    )
    assert low.final is not None and exact.final is not None
    assert low.final.train_loss == pytest.approx(exact.final.train_loss, rel=0.1)
    assert low.final.train_loss != exact.final.train_loss


@pytest.mark.parametrize(("channels_last", "channels"), [(True, 3), (False, 3)])
def test_memory_format_reaches_the_convolutions(models, channels_last, channels):
    recipe = make_recipe(channels_last=channels_last, epochs=1.0)
    running = loop.train(
        Job(
            make_workload(eval_every_samples=8), recipe, make_splits(channels=3), seed=0, device=CPU
        )
    )
    next(running)
    conv, seen = models[0].conv, []
    conv.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    next(running)
    tensors = [*seen, conv.weight]
    assert all(t.is_contiguous(memory_format=torch.channels_last) == channels_last for t in tensors)
    assert all(t.is_contiguous() != channels_last for t in tensors)


# --- Warm-up


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_warm_up_leaves_no_trace(monkeypatch, models, precision):
    recipe = make_recipe(model=DROPOUT, optimizer=Adam(lr=0.01), precision=precision)
    warm = losses(run(recipe))
    monkeypatch.setattr(loop, "warm_up", lambda *args, **kwargs: None)
    assert losses(run(recipe)) == warm
    states = [model.state_dict() for model in models]
    assert all(map(torch.equal, *(state.values() for state in states)))


def run_in(warm: set[str], recipe: Recipe, *, seed: int = 0) -> RunResult:
    turnstile = Turnstile(None, why_not="The run keeps to itself.")
    sharing = Sharing(label="", turnstile=turnstile, steps=KnownSteps(warm=warm))
    workload, splits = make_workload(), make_splits()
    return to_end(loop.train(Job(workload, recipe, splits, seed=seed, device=CPU), sharing=sharing))


def test_steps_that_the_process_has_taken_need_no_warm_up_and_train_the_same(rates):
    warm, recipe = set[str](), make_recipe(model=ResNet20())
    first = run_in(warm, recipe, seed=1)
    assert len(rates) == 1 + first.steps
    second = run_in(warm, recipe, seed=1)
    assert len(rates) == 1 + first.steps + second.steps
    assert losses(second) == losses(first)


def test_steps_of_another_kind_are_warmed_up(rates: list[object]) -> None:
    warm = set[str]()
    done = [run_in(warm, make_recipe(model=ResNet20(), batch_size=n)) for n in (8, 4)]
    assert len(rates) == sum(1 + each.steps for each in done)


def test_every_run_alone_is_warmed_up(rates: list[object]) -> None:
    done = [run(), run()]
    assert len(rates) == sum(1 + each.steps for each in done)


def test_windows_leave_out_cotenants_when_they_look_for_other_processes(monkeypatch, tmp_path):
    asked: list[set[int]] = []

    def strangers(device: torch.device, *, for_s: float, tenants: Collection[int]) -> str:
        asked.append(set(tenants))
        return ""

    monkeypatch.setattr(warm_up, "strangers", strangers)
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path))
    with (
        Tenancy.begin("gpu-1", study="s", trial="t0001"),
        Sharing.open("gpu-1", study="s", trial="t0000", may_have_company=True) as sharing,
    ):
        workload, recipe, splits = (
            make_workload(),
            make_recipe(model=ResNet20(), epochs=1),
            make_splits(),
        )
        to_end(loop.train(Job(workload, recipe, splits, seed=0, device=CPU), sharing=sharing))
    # The co-tenant's, of this very process.
    assert asked and all(each == {os.getpid()} for each in asked)


def test_warm_up_restores_weights_statistics_and_random_numbers() -> None:
    recipe, splits = make_recipe(model=DROPOUT), make_splits()
    job = Job(make_workload(), recipe, splits, 0, CPU, "validation", ALONE)
    model, loader = loop.set_up(job)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    loop.warm_up(job, model, model, loader, SHAPE)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("num_train", "batch_size", "drop_last", "sizes"),
    [
        (20, 8, False, [8, 4]),
        (16, 8, False, [8]),
        (5, 8, False, [5]),
        (8, 8, False, [8]),
        (9, 8, False, [8, 1]),
        (20, 8, True, [8]),
        (5, 8, True, [5]),
    ],
)
def test_warm_up_sees_every_size_of_micro_batch_of_an_epoch(
    num_train: int, batch_size: int, drop_last: bool, sizes: list[int]
) -> None:
    recipe = make_recipe(batch_size=batch_size, drop_last=drop_last)
    job = Job(make_workload(), recipe, make_splits(num_train), 0, CPU, "validation", ALONE)
    (model, loader), seen = loop.set_up(job), list[int]()
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    loop.warm_up(job, model, model, loader, SHAPE)
    assert seen == sizes


class PooledNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.classifier = nn.BatchNorm2d(1), nn.Linear(1, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.norm(images.mean(dim=(2, 3), keepdim=True)).flatten(1))


class Pooled(Tiny):
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return PooledNorm()


@pytest.mark.parametrize(("num_train", "batch_size"), [(17, 8), (17, 1)])
def test_lone_image_that_batch_norm_cannot_take_is_refused_before_training(num_train, batch_size):
    recipe = make_recipe(model=Pooled(), batch_size=batch_size)
    with pytest.raises(LoneImage, match=f"recipe.batch_size: .* {batch_size} with 17") as error:
        run(recipe, make_splits(num_train))
    assert isinstance(error.value, ConfigError)
    assert run(recipe.model_copy(update={"batch_size": 6}), make_splits(num_train)).steps == 6


@pytest.mark.slow
def test_compiling_in_a_process_of_its_own() -> None:
    """Runs compiled_runs.py: tracing slows down by orders in a process that ran many tests."""
    checks = Path(__file__).parents[1] / "helpers/training/compiled_runs.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout


# --- The clock


class SpanClock(Clock):
    running: Span | None = None

    def start(self, span: Span) -> None:
        super().start(span)
        self.running = span

    def stop(self) -> None:
        self.running = None
        super().stop()


class HostReads(TorchDispatchMode):
    READS = frozenset(("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"))

    def __init__(self, clock: SpanClock) -> None:
        super().__init__()
        self.clock, self.spans, self.num_training_ops = clock, list[Span | None](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_training_ops += self.clock.running == "train_s"
        if func.overloadpacket.__name__ in self.READS:
            self.spans.append(self.clock.running)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", [Sgd(lr=0.1), Adam(lr=0.1)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_step_waits_for_the_device(optimizer: Any, precision: str) -> None:
    recipe = make_recipe(
        optimizer=optimizer,
        precision=precision,
        clip_norm=0.1,
        accumulation_steps=2,
        augmentation=AUGMENTATION,
        lr_schedule=OneCycle(),
    )
    clock = SpanClock(synchronize=lambda: None)
    with HostReads(clock) as reads:
        to_end(
            loop.train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU), clock=clock)
        )
    assert reads.num_training_ops > 100
    assert "train_s" not in reads.spans
    assert len(reads.spans) == 2  # the training loss, once for each evaluation


def test_clock_leaves_out_evaluations_and_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    time, original = FakeTime(), scoring.evaluate

    def slow_evaluate(*args: Any, **kwargs: Any) -> Scores:
        time.seconds += 100.0
        return original(*args, **kwargs)

    monkeypatch.setattr(scoring, "evaluate", slow_evaluate)
    running = loop.train(
        Job(make_workload(), make_recipe(epochs=3.0), make_splits(), seed=0, device=CPU),
        clock=time.clock(),
        interrupt=lambda: time.pass_(1.0),
    )
    result = to_end(running, between=lambda _: str(time.pass_(1000.0) or ""))
    assert [e.train_s for e in result.evaluations] == [0.0, 3.0, 6.0, 9.0]
    assert (result.clocks.train_s, result.clocks.eval_s) == (9.0, 400.0)
    assert result.clocks.wall_s == 9.0 + 400.0 + 2 * 1000.0
    assert (result.images_per_s, result.step_time_ms) == (60 / 9.0, 1000.0)


def test_loading_is_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    time, original = FakeTime(), loop.open_loader

    def open_slow(config: LoaderConfig, *args: Any, **kwargs: Any) -> Any:
        loader = original(config, *args, **kwargs)
        make_epoch, make_dummy = loader.epoch, loader.dummy

        def slow_epoch(epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
            for batch in make_epoch(epoch, skip=skip):
                time.seconds += 2.0
                yield batch

        def slow_dummy(size: int) -> Planned:
            time.seconds += 2.0
            return make_dummy(size)

        loader.epoch, loader.dummy = slow_epoch, slow_dummy
        return loader

    monkeypatch.setattr(loop, "open_loader", open_slow)
    running = loop.train(
        Job(make_workload(), make_recipe(), make_splits(), seed=0, device=CPU), clock=time.clock()
    )
    clocks = to_end(running).clocks
    assert (clocks.train_s, clocks.compile_s) == (2 * 3 * 2.0, 2 * 2.0)


# --- Ends


def test_record_so_far_comes_after_each_evaluation_but_the_last() -> None:
    seen: list[RunResult] = []
    running = loop.train(
        Job(make_workload(), make_recipe(epochs=3.0), make_splits(), seed=7, device=CPU)
    )
    result = to_end(running, between=lambda so_far: seen.append(so_far))
    assert [len(so_far.evaluations) for so_far in seen] == [2, 3]
    assert {so_far.status for so_far in seen} == {Status.CAPPED}
    assert [e.step for e in result.evaluations] == [0, 3, 6, 9]
    assert (result.seed, result.batch_size, result.accumulation_steps) == (7, 8, 1)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(4, [0, 12, 20, 32, 40]), (8, [0, 16, 20, 36, 40]), (10, [0, 10, 20, 30, 40])],
)
def test_grid_is_in_samples_whatever_the_batch_size(batch_size: int, expected: list[int]) -> None:
    result = run(make_recipe(batch_size=batch_size), eval_every_samples=10)
    assert [e.samples for e in result.evaluations] == expected
    assert [e.samples // 10 for e in result.evaluations] == [0, 1, 2, 3, 4]


def test_step_larger_than_the_grid_is_evaluated_once() -> None:
    result = run(make_recipe(batch_size=20), eval_every_samples=3)
    assert [e.samples for e in result.evaluations] == [0, 20, 40]


def test_anytime_run_stops_at_the_second_pass_and_counts_the_first(monkeypatch):
    fake_accuracies(monkeypatch, 0.1, 0.9, 0.2, 0.9, 0.95)
    result = run(make_recipe(epochs=9.0), target=0.9, mode="anytime")
    assert result.status == Status.REACHED
    assert len(result.evaluations) == 5
    assert result.time_to_target_s == result.evaluations[3].train_s


@pytest.mark.parametrize(
    ("accuracies", "status"), [((0.95, 0.95, 0.8), "missed"), ((0.1, 0.1, 0.9), "reached")]
)
def test_fixed_length_run_goes_to_its_end(monkeypatch, accuracies, status):
    fake_accuracies(monkeypatch, 0.1, *accuracies)
    result = run(make_recipe(epochs=3.0), target=0.9)
    assert (result.status.value, result.steps) == (status, 9)
    expected = result.clocks.train_s if status == "reached" else None
    assert result.time_to_target_s == expected


def test_single_pass_at_the_end_of_an_anytime_run_is_a_miss(monkeypatch):
    fake_accuracies(monkeypatch, 0.1, 0.1, 0.95)
    result = run(make_recipe(epochs=2.0), target=0.9, mode="anytime")
    assert (result.status, result.time_to_target_s) == (Status.MISSED, None)


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_run_past_its_time_limit_is_capped_even_if_it_holds_the_target(monkeypatch, mode):
    time = FakeTime()
    fake_accuracies(monkeypatch, 0.1, 0.95, 0.95)
    running = loop.train(
        Job(
            make_workload(target=0.9, mode=mode, max_train_s=4.5),
            make_recipe(),
            make_splits(),
            seed=0,
            device=CPU,
        ),
        clock=time.clock(),
        interrupt=lambda: time.pass_(1.0),
    )
    result = to_end(running)
    assert (result.status, result.time_to_target_s) == (Status.CAPPED, None)
    assert (result.steps, result.clocks.train_s) == (5, 5.0)
    assert "max_train_s = 4.5 s" in str(result.stop_reason)


def test_reason_from_outside_caps_the_run() -> None:
    running = loop.train(Job(make_workload(), make_recipe(), make_splits(), seed=0, device=CPU))
    result = to_end(running, between=lambda _: "cannot win any more")
    assert (result.status, str(result.stop_reason)) == (Status.CAPPED, "cannot win any more")
    assert (result.steps, len(result.evaluations)) == (3, 2)


def test_target_that_the_untrained_model_meets_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload\.target\.value: must exceed .* but got 0\.01"):
        run(target=0.01)


@pytest.mark.parametrize("optimizer", [Sgd(lr=1e30), Sgd(lr=1e30, momentum=0.0, nesterov=False)])
def test_loss_that_is_not_finite_ends_the_run_as_diverged(optimizer: Sgd) -> None:
    result = run(make_recipe(optimizer=optimizer, epochs=9.0))
    assert (result.status, result.time_to_target_s) == (Status.DIVERGED, None)
    assert result.steps < 27
    assert "not finite" in str(result.stop_reason)
    text = json.dumps(result.model_dump(mode="json"), allow_nan=False)
    assert RunResult.model_validate_json(text) == result


def test_interrupted_run_has_no_result_and_closes_its_loader(monkeypatch):
    closed: list[bool] = []
    monkeypatch.setattr(StreamingLoader, "close", lambda self: closed.append(True))
    asked = iter([False, True])
    running = loop.train(
        Job(make_workload(), make_recipe(loader=Streaming()), make_splits(), seed=0, device=CPU),
        interrupt=lambda: next(asked),
    )
    with pytest.raises(loop.Interrupted):
        next(running)
    assert closed == [True]


def test_run_that_is_given_up_closes_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(StreamingLoader, "close", lambda self: closed.append(True))
    recipe = make_recipe(loader=Streaming())
    running = loop.train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU))
    next(running)
    running.close()
    assert closed == [True]


def test_evaluation_that_runs_out_of_memory_goes_on_in_smaller_batches(models):
    recipe, splits = make_recipe(batch_size=2, epochs=1.0), make_splits(8, 9)
    expected = run(recipe, splits)
    cramped = run(recipe.model_copy(update={"model": Tiny(most_images=3)}), splits)
    assert [e.accuracy for e in cramped.evaluations] == [e.accuracy for e in expected.evaluations]
    assert losses(cramped)[-1] == pytest.approx(losses(expected)[-1], rel=1e-6)
    assert models[-1].training


def test_peak_memory_is_that_of_this_run_alone() -> None:
    small = run().peak_memory_gib
    large = run(make_recipe(batch_size=60_000), make_splits(60_000)).peak_memory_gib
    again = run().peak_memory_gib
    assert small and large and again
    assert large > small + 0.05
    assert again == pytest.approx(small, abs=0.03)
    assert not math.isinf(again)


def test_schedule_follows_the_validation_loss_whatever_part_is_evaluated() -> None:
    splits = make_splits()
    other = splits._replace(test=splits.train)
    recipe = make_recipe(lr_schedule=ReduceOnPlateau(patience=0), epochs=4.0)
    on_validation, on_test = (
        to_end(
            loop.train(Job(make_workload(), recipe, other, seed=0, evaluated_on=part, device=CPU))
        )
        for part in ("validation", "test")
    )
    assert losses(on_validation) != losses(on_test)
    trained = [[e.train_loss for e in run.evaluations] for run in (on_validation, on_test)]
    assert trained[0] == trained[1]
