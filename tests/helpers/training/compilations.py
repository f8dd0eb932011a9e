"""Compiles a small network for two trials; `test_compilation.py` runs it in its own processes.

Prints the second trial's last loss, whether the first trial `found` on disk what it needs, whether
the second `reused` the first's, and whether the first one's weights are `freed`. With the word
`more`, it then trains other networks in between.
"""

import gc
import sys
import weakref

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tune_speed.training.build import compiled


class Tiny(nn.Module):
    """Has weights, statistics that a step changes, and random numbers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, width), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(width, 2)
        self.scale = 1.0

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(images)).relu() * self.scale))


def trial(seed: int, *, width: int = 8, scale: float = 1.0) -> tuple[float, weakref.ref[Tensor]]:
    torch.manual_seed(seed)
    model = Tiny(width)
    model.scale = scale
    images, labels = torch.randn(6, 4), torch.randint(2, (6,))
    forward, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = nn.functional.cross_entropy(forward(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss), weakref.ref(model.first.weight)


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


def main() -> None:
    torch.set_num_threads(1)
    _, weights = trial(0)
    gc.collect()
    cached = counters["aot_autograd"]["autograd_cache_hit"]
    found = "found" if cached + counters["inductor"]["fxgraph_cache_hit"] else "compiled"
    graphs = num_graphs()
    loss, _ = trial(1)
    reused = "reused" if num_graphs() == graphs else "anew"
    if "more" in sys.argv:
        scaled, _ = trial(1, scale=2.0)  # Of the same make, as far as its key can tell.
        trial(1, width=16)  # Of another: all is forgotten.
        assert trial(1)[0] == loss
        trial(1, width=16)
        assert trial(1, scale=2.0)[0] == scaled != loss
    print(loss.hex(), found, reused, "freed" if weights() is None else "kept")


if __name__ == "__main__":
    main()
