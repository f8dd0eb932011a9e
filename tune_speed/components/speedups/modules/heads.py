"""The last layer of a classifier."""

from torch import nn

from tune_speed.core.errors import ConfigError, Problem

Classifier = nn.Linear | nn.Conv2d
"""A layer that gives the logits; a convolution where they are pooled afterwards."""


def find_classifier(model: nn.Module, *, path: str) -> tuple[str, Classifier]:
    """Returns name and layer of the linear layer or convolution that was registered last.

    Raises:
        ConfigError: if there is none; it names `path` of the recipe.
    """
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    if not layers:
        raise refusal(path, must="must have a network with a final layer", model=model)
    return layers[-1]


def refusal(path: str, *, must: str, model: nn.Module) -> ConfigError:
    """Returns the error that a speed-up cannot act on such a network."""
    return ConfigError(problems=(Problem(path=path, must=must, given=type(model).__name__),))
