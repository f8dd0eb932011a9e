"""What tests of steps share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tune_speed.training.step import recorded


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    pools: list[Any] = []

    def record(
        call: Callable[[], list[Tensor]], device: torch.device, pool: Any
    ) -> recorded.Recorded:
        for _ in range(recorded.REHEARSALS):
            call()
        pools.append(pool)
        results = [torch.full_like(tensor, torch.nan) for tensor in call()]

        def replay() -> None:
            for held, new in zip(results, call(), strict=True):
                held.copy_(new)

        return recorded.Recorded(replay, results, pool or f"pool {len(pools)}")

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    return pools
