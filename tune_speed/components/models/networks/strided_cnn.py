"""Convolutions one after the other, of which two have stride 2.

Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net", 2015, table 1,
model C, and section 3.1.
"""

from torch import Tensor, nn


class StridedCNN(nn.Module):
    """Images (N, C, H, W) to logits (N, num_classes), with nine convolutions."""

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        width: int,
        batch_norm: bool,
        input_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.input_dropout = nn.Dropout(input_dropout)
        self.first = layer(in_channels, width, batch_norm=batch_norm)
        wide = 2 * width
        self.blocks = nn.Sequential(
            layer(width, width, batch_norm=batch_norm),
            layer(width, width, batch_norm=batch_norm, stride=2, dropout=dropout),
            layer(width, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm, stride=2, dropout=dropout),
            layer(wide, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm, kernel_size=1),
        )
        self.classifier = nn.Conv2d(wide, num_classes, 1)
        self.apply(_init_conv)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (N, num_classes)."""
        return self.head(self.blocks(self.stem(images)))

    def stem(self, images: Tensor) -> Tensor:
        """Returns the first convolution's features (N, width, H, W)."""
        features: Tensor = self.first(self.input_dropout(images))
        return features

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, num_classes), means over pixels of features (N, 2 width, h, w)."""
        logits: Tensor = self.classifier(features).mean(dim=(2, 3))
        return logits


def layer(
    in_channels: int,
    out_channels: int,
    *,
    batch_norm: bool,
    kernel_size: int = 3,
    stride: int = 1,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Returns a convolution, a norm if wanted, ReLU and a dropout if it is above 0."""
    conv = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=not batch_norm,
    )
    norm = [nn.BatchNorm2d(out_channels)] if batch_norm else []
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(conv, *norm, nn.ReLU(inplace=True), *drop)


def _init_conv(module: nn.Module) -> None:
    # By fan-in: the classifier has so few outputs that by fan-out its logits would be huge.
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
