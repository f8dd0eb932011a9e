"""What an optimizer gets in `half_fp32_norms`: the gradient of fp32, as far as fp16 holds it."""

import torch
from helpers.training.tiny import CPU, make_images
from torch import Tensor

from tune_speed.components.speedups.base import Shape
from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import build_model, set_seed
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper

NUM_IMAGES, STEP_SIZE = 32, 4096


def gradients(precision: str) -> dict[str, Tensor]:
    """Returns the gradient that each parameter's update is made of.

    Of the many images of a step, those of the first micro-batch are there.
    """
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1}
    sizes = {"batch_size": NUM_IMAGES, "accumulation_steps": STEP_SIZE // NUM_IMAGES}
    recipe = Recipe.model_validate({**tree, **sizes, "precision": precision})
    images = make_images(NUM_IMAGES, size=16)
    splits = Splits(images, images, images, *channel_statistics(images.pixels), 3, "s" * 16)
    set_seed(recipe, 0)
    model = build_model(recipe, splits, seed=0, device=CPU)
    stepper = Stepper(model.train(), model, recipe, device=CPU)
    found: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            found[name.removeprefix("network.")] = parameter.grad.float()

    stepper.optimizer.register_step_pre_hook(keep)
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255 - 0.5
    batch = (pixels.contiguous(memory_format=torch.channels_last), torch.from_numpy(images.labels))
    stepper.learn(Group(STEP_SIZE, [batch]), Shape(16, 16), frac=0.5)
    return found


def test_gradients_of_each_layer_are_near_those_of_fp32() -> None:
    exact, scaled = gradients("fp32"), gradients("half_fp32_norms")
    assert exact.keys() == scaled.keys() and len(exact) > 40
    off = {n: float((scaled[n] - exact[n]).norm() / exact[n].norm()) for n in exact}
    assert max(off.values()) < 0.25, max(off, key=lambda name: off[name])
