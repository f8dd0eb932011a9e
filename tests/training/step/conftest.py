"""What tests of steps share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tune_speed.training.step import gradient


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets a CPU record by calling again; lists the memory that each recording was given."""
    pools: list[Any] = []

    def record(call: Callable[[], Tensor], device: torch.device, pool: Any) -> gradient.Recorded:
        for _ in range(gradient.REHEARSALS):
            call()
        pools.append(pool)
        result = torch.full((), torch.nan)
        own = pool or f"pool {len(pools)}"
        return gradient.Recorded(lambda: result.copy_(call()), result, own)

    monkeypatch.setitem(gradient.RECORDERS, "cpu", record)
    return pools
