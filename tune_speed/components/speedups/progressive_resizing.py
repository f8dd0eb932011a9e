"""Small images at the beginning of the run, whole ones at its end."""

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.speedups.base import Shape, Slot, SpeedupConfig, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProgressiveResizing(SpeedupConfig):
    """Small images first: their scale grows from `initial_scale` to 1, as do the costs of a step.

    The scale at progress s: initial_scale up to `delay_frac`, then on a straight line to 1 at
    1 − `finetune_frac`, then 1. Height and width are rounded to multiples of `multiple`, and at
    most whole. Evaluation sees whole images. A step costs about scale² of what it costs at 1.

    The network must take images of any size, so it pools globally: ResNets and their kin do, ViTs
    do not. Where cuDNN may choose its algorithms (`deterministic: false`), each size is tried out.

    Source: mosaicml/composer, ProgressiveResizing; fastai. Deviations: height and width are
    rounded each by itself, and `bilinear` is there as well, with antialiasing.
    """

    slot: ClassVar[Slot] = "resolution"
    untimed_fields = frozenset({"initial_scale", "delay_frac", "finetune_frac", "multiple"})

    initial_scale: float = Field(default=0.5, gt=0, le=1)
    """Side of the first images over that of whole ones, in (0, 1]."""
    delay_frac: float = Field(default=0.5, ge=0, lt=1)
    """Share of the run after which images begin to grow."""
    finetune_frac: float = Field(default=0.2, ge=0, lt=1)
    """Share of the run, at its end, with whole images."""
    multiple: int = Field(default=4, ge=1, le=64)
    """Heights and widths are multiples of this [pixels]."""
    mode: Literal["nearest", "bilinear"] = "nearest"
    """How images are made smaller; nearest is cheaper, bilinear loses less."""

    @model_validator(mode="after")
    def _leaves_room_to_grow(self) -> Self:
        if self.delay_frac + self.finetune_frac > 1:
            raise ValueError("delay_frac + finetune_frac must be at most 1")
        return self

    def scale(self, frac: float) -> float:
        """Returns the side of images over that of whole ones at `frac` of the run."""
        end = 1 - self.finetune_frac
        if frac >= end:
            return 1.0
        if frac <= self.delay_frac:
            return self.initial_scale
        grown = (frac - self.delay_frac) / (end - self.delay_frac)
        return self.initial_scale + (1 - self.initial_scale) * grown

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if the network is bound to one size of images."""
        from tune_speed.components.speedups.modules.sizes import why_one_size

        if (error := why_one_size(model)) is not None:
            raise refusal(
                "speedups.resolution.progressive_resizing",
                must="must have a network that takes images of any size, by pooling globally",
                given=f"{type(model).__name__}, which does not ({type(error).__name__}: {error})",
                hint="Try a ResNet, or leave progressive_resizing out.",
            ) from error

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns `shape` with the height and width of the images of the step."""
        scale = self.scale(frac)
        height, width = (self._scaled(side, scale) for side in (shape.height, shape.width))
        return shape._replace(height=height, width=width)

    def change_batch(self, images: "Tensor", shape: Shape) -> "Tensor":
        """Returns the images in the shape's height and width."""
        from torch.nn import functional

        size = (shape.height, shape.width)
        if tuple(images.shape[2:]) == size:
            return images
        antialias = self.mode == "bilinear"
        return functional.interpolate(images, size=size, mode=self.mode, antialias=antialias)

    def _scaled(self, side: int, scale: float) -> int:
        if scale == 1:
            return side
        return min(side, max(1, round(side * scale / self.multiple)) * self.multiple)
