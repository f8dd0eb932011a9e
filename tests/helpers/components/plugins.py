"""Plugins for tests: their text, and studies that name what they bring."""

from pathlib import Path

MY_NET = '''"""A plugin."""

from typing import TYPE_CHECKING

from pydantic import Field

from tune_speed.components import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class MyNet(ModelConfig):
    """Pixels, one hidden layer, classes."""

    width: int = Field(default=16, ge=1)
    """Units of the hidden layer."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns a fresh network."""
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(in_channels * image_size**2, self.width),
            nn.ReLU(),
            nn.Linear(self.width, num_classes),
        )


MODELS = {"my_net": MyNet}
'''

STUDY = """
study: tiny
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.3}
  max_train_s: 30
  split: {validation_frac: 0.2, train_samples: 300, validation_samples: 100}
recipe:
  model: {my_net: {width: {choices: [16, 32]}}}
  optimizer: {sgd: {lr: {choices: [0.1, 0.2]}}}
  epochs: 2
  batch_size: 50
search: {trials: 2, concurrent: 1, policy: random, seed: 1}
"""

RECIPE = """
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.3}
  max_train_s: 30
  split: {validation_frac: 0.2, train_samples: 300, validation_samples: 100}
recipe:
  model: my_net
  optimizer: {sgd: {lr: 0.1}}
  epochs: 2
  batch_size: 50
run: {device: cpu, cpu_threads: 1}
"""


def write(folder: Path, name: str = "my_nets.py", text: str = MY_NET) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
