"""Dropout that the network brings, switched off."""

from typing import TYPE_CHECKING, ClassVar

from tune_speed.components.speedups.base import Slot, SpeedupConfig, refusal

if TYPE_CHECKING:
    from torch import nn


class DropoutRemoval(SpeedupConfig):
    """Switches off every dropout of the network: less noise, at the risk of overfitting.

    It means something only where the model drops: torchvision's EfficientNet and MobileNets (0.2),
    VGG, AlexNet and SqueezeNet (0.5) do so by default; the models of timm, and ours, drop nothing
    unless the recipe's model says so.

    Source: the blog post "Training Time Speed Ups": a stochastic step like dropout, removed, can
    shorten training; dropout itself: Srivastava et al., JMLR 15, 2014.
    """

    slot: ClassVar[Slot] = "dropout"

    include_stochastic_depth: bool = False
    """Switch off the model's own stochastic depth (`drop_path_rate`) too."""

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if the network drops nothing anyway."""
        from tune_speed.components.speedups.modules.dropout import active_dropouts

        if active_dropouts(model, stochastic_depth=self.include_stochastic_depth):
            return
        raise refusal(
            "speedups.dropout.dropout_removal",
            must="must have a network with dropout to switch off",
            given=f"{type(model).__name__} with none",
            hint="Set the model's drop_rate or dropout above 0, or leave dropout_removal out.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns `model`, whose dropout is off from now on."""
        from tune_speed.components.speedups.modules.dropout import switch_off

        switch_off(model, stochastic_depth=self.include_stochastic_depth)
        return model
