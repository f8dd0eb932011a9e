"""Questions about the techniques that need no training: each is tried out.

Each check takes the device and yields its answers. What needs a GPU is `not applicable here`
without.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from tune_speed.experiments.replication.agreement import CheckRow
from tune_speed.study.replication import CheckName

if TYPE_CHECKING:
    import torch

SOURCES: dict[CheckName, str] = {"effective_batch": "review of Nokhwal et al."}
# Factor that PyTorch's `GradScaler` begins with.
FIRST_SCALE = 2.0**16
COPIED_MIB = 64
ROUNDS = 20
# Of 20 rounds; as many fall to one side by chance with p = 0.04 (sign test, two-sided).
QUICKER_ROUNDS = 15
STEPS = 10
# Batches four times as slow as steps [s]: 80 % of the time must be seen as waiting.
SLOW_BATCH_S, STEP_S = 0.008, 0.002


class Answer(NamedTuple):
    """A question and its answers; by default those of a check that needs a GPU."""

    question: str
    expected: str
    ours: str = "there is no GPU here"
    agrees: str = "not applicable here"


def run_checks(names: Iterable[CheckName], device: "torch.device") -> tuple[CheckRow, ...]:
    return tuple(
        CheckRow(check=name, source=SOURCES.get(name, ""), **answer._asdict())
        for name in names
        for answer in CHECKS[name](device)
    )


def effective_batch(device: "torch.device") -> Iterator[Answer]:
    from tune_speed.training.recipe import Recipe

    fields = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1.0}
    recipe = Recipe.model_validate({**fields, "batch_size": 16, "accumulation_steps": 4})
    question = "How many samples does a step have with batches of 16, accumulated over 4?"
    yield Answer(question, "64", f"{recipe.samples_per_step}", _word(recipe.samples_per_step == 64))


def fp16_underflow(device: "torch.device") -> Iterator[Answer]:
    import torch

    def half(value: float) -> float:
        return torch.tensor(value, device=device).half().float().item()

    # 2^-24 is the smallest number of half precision; 2^-25 is halfway to 0, and a tie goes to
    # the even one, which is 0.
    lost, smallest = half(2**-25), half(2**-24)
    scaled = half(2**-25 * FIRST_SCALE) / FIRST_SCALE
    bare = _weight_after_step(scale=1.0, device=device)
    saved = _weight_after_step(scale=FIRST_SCALE, device=device)
    yield Answer(
        "Which gradients does half precision lose?",
        "those below 2^-24: 2^-25 becomes 0, 2^-24 stays",
        f"2^-25 becomes {lost:g}, 2^-24 becomes {smallest:.3g}",
        _word(lost == 0 and smallest == 2**-24),
    )
    yield Answer(
        "Does scaling save them?",
        "2^-25, scaled by 2^16, is in range and comes back when divided in fp32",
        f"2^-25 comes back as {scaled:.3g}",
        _word(scaled == 2**-25),
    )
    yield Answer(
        "Does a weight move in fp16 with a gradient of 2^-25?",
        "not without a scaler; with one, by the whole gradient",
        f"by {abs(bare):g} without, by {abs(saved):.3g} with",
        _word(bare == 0 and saved == -(2**-25)),
    )


def _weight_after_step(*, scale: float, device: "torch.device") -> float:
    import torch

    # The gradient is the product of an input, 2^-12, and of what flows back, 2^-13 times `scale`;
    # half precision has each of them.

    weight = torch.zeros((), device=device, requires_grad=True)
    inputs = torch.tensor(2**-12, device=device).half()
    loss = (weight.half() * inputs).float() * 2**-13
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    return (weight - weight.grad / scale).item()


def pinned_copy(device: "torch.device") -> Iterator[Answer]:
    faster = "Is a copy to the GPU faster from pinned memory?"
    continues = "Does the host continue while a copy from pinned memory runs?"
    if device.type != "cuda":
        yield from (Answer(faster, "yes"), Answer(continues, "yes"))
        return
    pageable, pinned = _copied(device)
    gb = COPIED_MIB * 2**20 / 1e9
    ours, other = (gb / statistics.median(copy_s for _, copy_s in c) for c in (pinned, pageable))
    quicker = sum(a < b for (_, a), (_, b) in zip(pinned, pageable, strict=True))
    rounds = f"medians of {ROUNDS} copies of {COPIED_MIB} MiB each, faster in {quicker}"
    is_clear = quicker >= QUICKER_ROUNDS or quicker <= ROUNDS - QUICKER_ROUNDS
    share = statistics.median(call_s / copy_s for call_s, copy_s in pinned)
    yield Answer(
        faster,
        "yes: pageable memory is copied to a pinned buffer first",
        f"{ours:.1f} against {other:.1f} GB/s: {rounds}",
        _word(quicker >= QUICKER_ROUNDS) if is_clear else "not decided",
    )
    yield Answer(
        continues,
        "yes, with `non_blocking`",
        f"the call returned after {share:.1%} of the copy's time (median of {ROUNDS})",
        _word(share < 0.5),
    )


# Seconds until the call returned, and until the copy was done.
Copy = tuple[float, float]


def _copied(device: "torch.device") -> tuple[list[Copy], list[Copy]]:
    import torch

    there = torch.empty(COPIED_MIB * 2**20, dtype=torch.uint8, device=device)
    pageable = torch.ones(there.shape, dtype=torch.uint8)
    sources = (pageable, pageable.pin_memory())
    copies: tuple[list[Copy], list[Copy]] = ([], [])
    for _ in range(ROUNDS + 1):
        for source, seen in zip(sources, copies, strict=True):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            there.copy_(source, non_blocking=True)
            call_s = time.perf_counter() - began
            torch.cuda.synchronize(device)
            seen.append((call_s, time.perf_counter() - began))
    # The first of each also sets up the copy engine.
    return copies[0][1:], copies[1][1:]


def hidden_syncs(device: "torch.device") -> Iterator[Answer]:
    question = f"How often does the host wait for the GPU in {STEPS} steps with `loss.item()`?"
    expected = f"{STEPS} times; never where the loss stays on the GPU"
    if device.type != "cuda":
        yield Answer(question, expected)
        return
    reading, not_reading = (_syncs(device, reads_loss=reads) for reads in (True, False))
    ours = f"{reading} times; {not_reading} times where the loss stays on the GPU"
    yield Answer(question, expected, ours, _word((reading, not_reading) == (STEPS, 0)))


def _syncs(device: "torch.device", *, reads_loss: bool) -> int:
    import torch

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


def loader_starvation(device: "torch.device") -> Iterator[Answer]:
    from tune_speed.training.autotune.loader_workers import MOST_WAIT

    slow, quick = (_waited(batch_s) for batch_s in (SLOW_BATCH_S, 0.0))
    share = SLOW_BATCH_S / (SLOW_BATCH_S + STEP_S)
    batches = f"batches of {SLOW_BATCH_S * 1000:g} ms and steps of {STEP_S * 1000:g} ms"
    yield Answer(
        f"Is starving seen with {batches}?",
        f"yes: {share:.0%} of the time is spent waiting",
        f"{slow:.0%} of the time is spent waiting",
        _word(slow >= MOST_WAIT),
    )
    yield Answer(
        "Is nothing seen with batches that are ready?",
        f"yes: less than {MOST_WAIT:.0%} of the time",
        f"{quick:.1%} of the time",
        _word(quick < MOST_WAIT),
    )


def _waited(batch_s: float) -> float:
    import torch

    from tune_speed.training.autotune.loader_workers import Setting, served
    from tune_speed.training.autotune.micro_batch import Batch

    batch: Batch = (torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))

    def batches() -> Iterator[Batch]:
        for each in repeat(batch):
            if batch_s:
                time.sleep(batch_s)
            yield each

    def take_step(fed: Iterator[Batch]) -> int:
        images, _ = next(fed)
        time.sleep(STEP_S)
        return len(images)

    return served(batches(), take_step, Setting(0, 2), synchronize=lambda: None).wait_frac


def _word(holds: bool) -> str:
    return "yes" if holds else "no"


CHECKS: dict[CheckName, Callable[["torch.device"], Iterator[Answer]]] = {
    "effective_batch": effective_batch,
    "fp16_underflow": fp16_underflow,
    "pinned_copy": pinned_copy,
    "hidden_syncs": hidden_syncs,
    "loader_starvation": loader_starvation,
}
