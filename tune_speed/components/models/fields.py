"""Fields that several models share, each with its meaning and bounds."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError


def _without_file(pretrained: bool, info: ValidationInfo) -> bool:
    if pretrained and info.data.get("weights_file") is not None:
        raise ValueError("`pretrained` and `weights_file` must not be given both")
    return pretrained


def _six_n_plus_two(depth: int) -> int:
    if depth % 6 == 2:
        return depth
    below = depth - (depth - 2) % 6
    text = f"must be 6n + 2, as three stages have n blocks of two layers: {below} or {below + 6}"
    raise PydanticCustomError("depth", "{text}", {"text": text})


Stem = Annotated[
    Literal["cifar", "native"],
    Field(
        description="cifar: for small images, the first convolution 3x3 with stride 1 and no"
        " max-pool after it. native: first layers as published, for images of about 224 pixels."
    ),
]

Pretrained = Annotated[
    bool,
    AfterValidator(_without_file),
    Field(
        description="Start from the published weights, which are downloaded once; the classifier,"
        " and the first convolution of a `cifar` stem, start fresh."
    ),
]

DropRate = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Share of the features before a layer of the classifier that is dropped in"
        " training, in [0, 1).",
    ),
]

DropPathRate = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Probability of dropping the last residual branch in training, in [0, 1);"
        " earlier ones less. It is drawn for each image and saves no time.",
    ),
]

ResizeTo = Annotated[
    int | None,
    Field(
        ge=8,
        description="Side to which the network resizes images first, bicubically [pixels], as"
        " published weights know larger ones than CIFAR's; None: as they come.",
    ),
]

Depth = Annotated[
    int,
    AfterValidator(_six_n_plus_two),
    Field(
        ge=8,
        le=1202,
        description="Layers with weights, 6n + 2 in [8, 1202]: a convolution, three stages of n"
        " blocks with two convolutions each, and the classifier.",
    ),
]
