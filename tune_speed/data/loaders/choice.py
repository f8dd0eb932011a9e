"""What `loader: auto` stands for: the way to feed that a set's size allows."""

import math
from collections.abc import Sequence

import torch

from tune_speed.core.words import Note, NoteKind
from tune_speed.data.base import EncodedRows, Images
from tune_speed.data.loaders.configs import LoaderConfig, Resident, Streaming
from tune_speed.data.loaders.resident import SET_SHARE, has_room
from tune_speed.runtime.device import GIB, free_bytes


def chosen(images: Sequence[Images], device: torch.device) -> tuple[LoaderConfig, Note]:
    """Returns the loader for the first of `images`, the training part, and why it is that one.

    `resident` also keeps the others on the device; so all must fit.
    """
    set_bytes = sum(math.prod(each.pixels.shape) for each in images)
    figures = {
        "set_gib": set_bytes / GIB,
        "free_gib": free_bytes(device) / GIB,
        "share": SET_SHARE[device.type],
    }
    if has_room(images, device):
        return Resident(), Note.of(NoteKind.LOADER, way="resident", **figures)
    is_encoded = isinstance(images[0].pixels, EncodedRows)
    host_bytes = free_bytes(torch.device("cpu"))
    note = Note.of(
        NoteKind.LOADER,
        way="encoded" if is_encoded else "mapped",
        **figures,
        host_gib=None if is_encoded or set_bytes <= host_bytes else host_bytes / GIB,
    )
    return Streaming(), note
