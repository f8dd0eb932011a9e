"""Answers to questions about the techniques that need no training: each is tried out."""

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from tune_speed.core.records import Record
from tune_speed.study.replication import CheckConfig, CheckName
from tune_speed.training.autotune.loader_workers import MOST_WAIT, Setting, served
from tune_speed.training.autotune.micro_batch import Batch
from tune_speed.training.recipe import Recipe

# Factor that PyTorch's `GradScaler` begins with.
FIRST_SCALE = 2.0**16
COPIED_MIB = 64
ROUNDS = 20
# Of 20 rounds; as many fall to one side by chance with p = 0.04 (sign test, two-sided).
QUICKER_ROUNDS = 15
STEPS = 10
# Batches four times as slow as steps [s]: 80 % of the time must be seen as waiting.
SLOW_BATCH_S, STEP_S = 0.008, 0.002

Answer = tuple[str, bool | None]
"""What was found, and whether it is what was expected; None: it cannot be decided."""
_WORDS = {True: "yes", False: "no", None: "not decided"}


class CheckRow(Record):
    """A question that needs no training, and its answer."""

    check: str
    question: str
    expected: str
    ours: str
    agrees: str


def run_checks(checks: Iterable[CheckConfig], device: torch.device) -> tuple[CheckRow, ...]:
    found = []
    for each in checks:
        ours, agrees = "there is no GPU here", "not applicable here"
        if device.type == "cuda" or each.check not in NEEDS_GPU:
            ours, holds = CHECKS[each.check](device)
            agrees = _WORDS[holds]
        found.append(CheckRow(**each.model_dump(), ours=ours, agrees=agrees))
    return tuple(found)


def samples_per_step(device: torch.device) -> Answer:
    fields = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1.0}
    recipe = Recipe.model_validate({**fields, "batch_size": 16, "accumulation_steps": 4})
    return f"{recipe.samples_per_step}", recipe.samples_per_step == 64


def _half(value: float, device: torch.device) -> float:
    return torch.tensor(value, device=device).half().float().item()


def fp16_loses(device: torch.device) -> Answer:
    # 2^-24 is the smallest number of half precision; 2^-25 is halfway to 0, and a tie goes to
    # the even one, which is 0.
    lost, smallest = _half(2**-25, device), _half(2**-24, device)
    ours = f"2^-25 becomes {lost:g}, 2^-24 becomes {smallest:.3g}"
    return ours, lost == 0 and smallest == 2**-24


def scaling_saves(device: torch.device) -> Answer:
    scaled = _half(2**-25 * FIRST_SCALE, device) / FIRST_SCALE
    return f"2^-25 comes back as {scaled:.3g}", scaled == 2**-25


def weight_moves(device: torch.device) -> Answer:
    bare, saved = (_weight_after_step(scale=s, device=device) for s in (1.0, FIRST_SCALE))
    return f"by {abs(bare):g} without, by {abs(saved):.3g} with", bare == 0 and saved == -(2**-25)


def _weight_after_step(*, scale: float, device: torch.device) -> float:
    # The gradient is the product of an input, 2^-12, and of what flows back, 2^-13 times `scale`;
    # half precision has each of them.
    weight = torch.zeros((), device=device, requires_grad=True)
    inputs = torch.tensor(2**-12, device=device).half()
    loss = (weight.half() * inputs).float() * 2**-13
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    return (weight - weight.grad / scale).item()


def pinned_is_faster(device: torch.device) -> Answer:
    pageable, pinned = _copied(device)
    gb = COPIED_MIB * 2**20 / 1e9
    ours, other = (gb / statistics.median(copy_s for _, copy_s in c) for c in (pinned, pageable))
    quicker = sum(a < b for (_, a), (_, b) in zip(pinned, pageable, strict=True))
    rounds = f"medians of {ROUNDS} copies of {COPIED_MIB} MiB each, faster in {quicker}"
    is_clear = quicker >= QUICKER_ROUNDS or quicker <= ROUNDS - QUICKER_ROUNDS
    holds = quicker >= QUICKER_ROUNDS if is_clear else None
    return f"{ours:.1f} against {other:.1f} GB/s: {rounds}", holds


def host_continues(device: torch.device) -> Answer:
    _, pinned = _copied(device)
    share = statistics.median(call_s / copy_s for call_s, copy_s in pinned)
    return (
        f"the call returned after {share:.1%} of the copy's time (median of {ROUNDS})",
        share < 0.5,
    )


def _copied(device: torch.device) -> tuple[list[tuple[float, float]], ...]:
    """Returns seconds until the call returned and until the copy was done: pageable, pinned."""
    there = torch.empty(COPIED_MIB * 2**20, dtype=torch.uint8, device=device)
    pageable = torch.ones(there.shape, dtype=torch.uint8)
    copies: dict[torch.Tensor, list[tuple[float, float]]] = {
        pageable: [],
        pageable.pin_memory(): [],
    }
    for _ in range(ROUNDS + 1):
        for source, seen in copies.items():
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            there.copy_(source, non_blocking=True)
            call_s = time.perf_counter() - began
            torch.cuda.synchronize(device)
            seen.append((call_s, time.perf_counter() - began))
    # The first of each also sets up the copy engine.
    return tuple(seen[1:] for seen in copies.values())


def hidden_syncs(device: torch.device) -> Answer:
    reading, not_reading = (_syncs(device, reads_loss=reads) for reads in (True, False))
    ours = f"{reading} times; {not_reading} times where the loss stays on the GPU"
    return ours, (reading, not_reading) == (STEPS, 0)


def _syncs(device: torch.device, *, reads_loss: bool) -> int:
    model = torch.nn.Linear(8, 8).to(device)
    inputs = torch.ones(4, 8, device=device)
    torch.cuda.synchronize(device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        # By default Python shows a warning once a line: only the first step would count.
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(STEPS):
                loss = model(inputs).square().mean()
                loss.backward()
                if reads_loss:
                    loss.item()
        finally:
            # The mode is the whole process's: what runs after this check would warn too.
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


def starving_is_seen(device: torch.device) -> Answer:
    share = _waited(SLOW_BATCH_S)
    return f"{share:.0%} of the time is spent waiting", share >= MOST_WAIT


def nothing_is_seen(device: torch.device) -> Answer:
    share = _waited(0.0)
    return f"{share:.1%} of the time", share < MOST_WAIT


def _waited(batch_s: float) -> float:
    batch: Batch = (torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))

    def batches() -> Iterator[Batch]:
        while True:
            if batch_s:
                time.sleep(batch_s)
            yield batch

    def take_step(fed: Iterator[Batch]) -> int:
        images, _ = next(fed)
        time.sleep(STEP_S)
        return len(images)

    return served(batches(), take_step, Setting(0, 2), synchronize=lambda: None).wait_frac


NEEDS_GPU: tuple[CheckName, ...] = ("pinned_is_faster", "host_continues", "hidden_syncs")
CHECKS: Mapping[str, Callable[[torch.device], Answer]] = {
    check.__name__: check
    for check in (
        *(samples_per_step, fp16_loses, scaling_saves, weight_moves, pinned_is_faster),
        *(host_continues, hidden_syncs, starving_is_seen, nothing_is_seen),
    )
}
