"""Weights that training starts from."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tune_speed.core.errors import ConfigError, DataError, first_line

# How long a server of published weights may be silent [s]. torch.hub itself would wait forever.
SILENCE_S = 60.0


@contextmanager
def fetching(name: str, *, library: str) -> Iterator[None]:
    """Turns failures, but ConfigError, into DataError; bounds the wait for a silent server."""
    timeout_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_S)
    try:
        yield
    except ConfigError:
        raise
    # Hubs fail by OSError, RuntimeError and errors of their HTTP clients; the cause is chained.
    except Exception as error:
        raise DataError(
            f"Fetching the published weights of {library}'s {name} "
            f"failed with {first_line(error)} Try `pretrained: false`, or a `weights_file`."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout_s)


def load_weights(
    network: nn.Module, weights: Mapping[str, Tensor], *, num_classes: int, origin: str
) -> nn.Module:
    """Returns `network` with `weights`, which must have the same names and shapes.

    The classifier alone may be of another class count (shapes that differ in the first dimension,
    where the network's is `num_classes`): then it keeps its fresh weights.

    Raises: DataError if anything else differs; names the first differences and `origin`.
    """
    own = network.state_dict()
    others = {name for name, given in weights.items() if own.get(name, given).shape != given.shape}
    heads = [name for name in others if own[name].shape == (num_classes, *weights[name].shape[1:])]
    fitting = {**weights, **{name: own[name] for name in heads}}
    differences = [
        *(f"{name} is missing" for name in own if name not in fitting),
        *(f"{name} is unknown to the model" for name in fitting if name not in own),
        *(
            f"{name} is of shape {tuple(fitting[name].shape)} instead of {tuple(own[name].shape)}"
            for name in own
            if name in fitting and fitting[name].shape != own[name].shape
        ),
    ]
    if differences:
        raise DataError(
            f"Weights must match the model, but those of {origin!r} do not: "
            f"{'; '.join(differences[:3])} ({len(differences)} differences in all). "
            "Check the model's name, its stem and the number of channels."
        )
    take_state(network, fitting)
    return network


def take_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a network's own state from a plain mapping, which does not say modules' versions."""
    # A copy of `state_dict()` loses them, and torchvision's MNASNet refuses a state without one.
    with_versions = network.state_dict()
    with_versions.clear()
    with_versions.update(state)
    network.load_state_dict(with_versions)


def read_weights(file: str) -> dict[str, Tensor]:
    """Returns the state dict in `file`, on the CPU. Nothing but tensors is unpickled.

    Raises: DataError if the file is missing, unreadable or no state dict of tensors.
    """
    # False too for what no file can be called.
    if not os.path.isfile(file):
        raise DataError(f"`weights_file` must name a file, but there is none at {file!r}.")
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
    # A damaged file fails in many ways: UnpicklingError, RuntimeError, EOFError, KeyError …
    except Exception as error:
        raise _no_state_dict(file, f"cannot be read ({first_line(error)})") from error
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise _no_state_dict(file, f"holds something else (a {type(weights).__name__})")
    return {str(name): value for name, value in weights.items()}


def _no_state_dict(file: str, what: str) -> DataError:
    return DataError(
        f"`weights_file` must hold a state dict of tensors, but {file!r} {what}. "
        "Write it with torch.save(model.state_dict(), file)."
    )
