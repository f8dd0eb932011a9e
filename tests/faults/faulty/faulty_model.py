"""A network that trains like any other until it does what its configuration asks for."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from tune_speed.components.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn

Fault = Literal[
    "none",
    "backward",
    "nan",
    "inf",
    "recursion",
    "prints",
    "long_message",
    "not_text",
    "secret",
    "keyboard_interrupt",
    "generator_exit",
    "os_exit",
    "sys_exit",
    "abort",
    "segfault",
    "killed",
    "waits",
    "deadlock",
    "keeps_lock",
    "stops",
    "stops_loader",
    "kills_loader",
    "leaks",
    "leaks_a_bit",
]


class Faulty(ModelConfig):
    """A small convolutional network that misbehaves in the training process."""

    fault: Fault = "none"
    """What goes wrong."""
    evaluations: int = 2
    """It goes wrong in the first step after so many evaluations, the untrained model's included."""
    times: int = 1_000_000
    """It goes wrong so many times, over all processes; needs $FAULTS_FOLDER."""
    slow_s: float = 0.0
    """Each training step takes at least so long [s]."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        from torch import nn

        layers = [nn.Conv2d(in_channels, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()]
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes)]
        return _network(self, nn.Sequential(*layers, *head))


def _network(config: Faulty, body: "nn.Module") -> "nn.Module":
    from torch import Tensor, nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.num_evaluations, self.is_evaluated = body, 0, False

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.body(images)
            if not self.training:
                self.is_evaluated = True
                return logits
            self.num_evaluations += self.is_evaluated
            self.is_evaluated = False
            if self.num_evaluations == 0:
                return logits
            note("training")
            time.sleep(config.slow_s)
            if self.num_evaluations < config.evaluations or not may_fail(config):
                return logits
            change = FAULTS[config.fault]()
            return logits if change is None else change(logits)

    return Network()


def may_fail(config: Faulty) -> bool:
    """Returns whether to fail now; counts failures as files, because processes end by them."""
    if config.fault == "none" or config.times >= 1_000_000:
        return config.fault != "none"
    for number in range(config.times):
        try:
            (folder() / f"{config.fault}-{number}").touch(exist_ok=False)
            return True
        except FileExistsError:
            continue
    return False


def note(name: str) -> None:
    """Leaves a file that says that this process got so far; for tests that wait for it."""
    if "FAULTS_FOLDER" in os.environ:
        (folder() / f"{name}-{os.getpid()}").touch()


def folder() -> Path:
    """Returns the folder through which test and networks talk."""
    return Path(os.environ["FAULTS_FOLDER"])


def backward() -> Callable[[Any], Any]:
    from torch import Tensor, autograd

    class Raises(autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor) -> Tensor:
            return logits.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ArithmeticError("no gradient here")

    return lambda logits: Raises.apply(logits)


def nan() -> Callable[[Any], Any]:
    return lambda logits: logits * float("nan")


def inf() -> Callable[[Any], Any]:
    return lambda logits: logits * float("inf")


def recursion() -> None:
    recursion()


def prints() -> None:
    for _ in range(4000):
        print("noise " * 200)
        print("\x1b[2J\x00 noise " * 50, file=sys.stderr)


def long_message() -> None:
    raise ValueError("a long tale " * 500_000)


def not_text() -> None:
    raise ValueError("\udcff\ud800 is no text \x00\x1b[31m")


def secret() -> None:
    raise ConnectionError(
        "could not fetch postgresql://me:s3cret@db/x nor https://h/p?token=t0ken-s3cret&n=1"
    )


def keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def generator_exit() -> None:
    raise GeneratorExit


def os_exit() -> None:
    os._exit(3)


def sys_exit() -> None:
    sys.exit(0)


def abort() -> None:
    os.abort()


def segfault() -> None:
    ctypes.string_at(0)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def waits() -> None:
    """Waits until a test has made the file `go`."""
    while not (folder() / "go").exists():
        time.sleep(0.05)


def deadlock() -> None:
    import threading

    lock = threading.Lock()
    with lock, lock:
        pass


def keeps_lock() -> None:
    """Holds the interpreter's lock: C waits, which PyDLL calls with it, for what never comes."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stops_loader() -> None:
    for child in psutil.Process().children():
        child.send_signal(signal.SIGSTOP)


def kills_loader() -> None:
    for child in psutil.Process().children():
        child.kill()


_kept: list[Any] = []


def leaks() -> None:
    """Takes 128 MiB more for good."""
    import torch

    _kept.append(torch.empty(32 * 2**20))


def leaks_a_bit() -> Callable[[Any], Any]:
    """Makes a cycle that holds 8 MiB, which only the collector of cycles can free."""
    import torch

    cycle: dict[str, Any] = {"block": torch.ones(2 * 2**20)}
    cycle["self"] = cycle
    return lambda logits: logits


FAULTS: dict[str, Callable[[], Callable[[Any], Any] | None]] = {
    "backward": backward,
    "nan": nan,
    "inf": inf,
    "recursion": recursion,
    "prints": prints,
    "long_message": long_message,
    "not_text": not_text,
    "secret": secret,
    "keyboard_interrupt": keyboard_interrupt,
    "generator_exit": generator_exit,
    "os_exit": os_exit,
    "sys_exit": sys_exit,
    "abort": abort,
    "segfault": segfault,
    "killed": killed,
    "waits": waits,
    "deadlock": deadlock,
    "keeps_lock": keeps_lock,
    "stops": stops,
    "stops_loader": stops_loader,
    "kills_loader": kills_loader,
    "leaks": leaks,
    "leaks_a_bit": leaks_a_bit,
}
