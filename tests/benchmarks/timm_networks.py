"""Runs timm's training script as it is, with our ResNet-20 among timm's models.

    python tests/benchmarks/timm_networks.py FOLDER/timm_train.py --model tune_speed_resnet20 …

The script is train.py of github.com/huggingface/pytorch-image-models; its options follow its path.
"""

import runpy
import sys

from timm.models import register_model
from torch import nn

from tune_speed.components.models.cifar import ResNet20

SIZE = 32


def tune_speed_resnet20(*, num_classes: int = 10, in_chans: int = 3, **_: object) -> nn.Module:
    """The network of the recipes named `resnet20`."""
    return ResNet20().build(in_channels=in_chans, num_classes=num_classes, image_size=SIZE)


register_model(tune_speed_resnet20)

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
