from pathlib import Path

import pytest
import torch
from starting import make_start
from torch import nn
from training import CPU, Tiny, make_recipe, make_splits, make_workload, to_end

from tune_speed.components.speedups.initial_weights import PretrainOther
from tune_speed.core.errors import ConfigError
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.training.build import Job
from tune_speed.training.loop import train

FIELDS = {"dataset": {"name": "digits"}, "train_samples": 100}


class Learns:
    """Adds one to every weight, and takes down what it was to learn from."""

    def __init__(self):
        self.models, self.labels, self.sizes = [], [], []

    def __call__(self, model, batches, num_steps):
        self.models.append(model)
        for images, labels in batches:
            assert len(model(images)) == len(labels)
            self.sizes.append(len(labels))
            self.labels += labels.tolist()
        assert len(self.sizes) <= num_steps
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1


def network(num_classes=3):
    torch.manual_seed(0)
    return Tiny(norm="batch").build(in_channels=1, num_classes=num_classes, image_size=8)


def test_all_but_the_final_layer_is_taken_over():
    model, before, learns = network(), network().state_dict(), Learns()
    PretrainOther(**FIELDS).init_weights(model, make_start(torch.zeros(4, 1, 8, 8), fit=learns))
    for name, value in model.state_dict().items():
        if name.startswith("classifier"):
            assert torch.equal(value, before[name]), name
        elif name in dict(model.named_parameters()):
            assert torch.equal(value, before[name] + 1), name
        elif name != "norm.num_batches_tracked":  # Statistics that forward passes have moved.
            assert not torch.equal(value, before[name]), name
    [learned] = learns.models
    assert learned.classifier.out_features == 10 and model.classifier.out_features == 3


def test_every_image_of_the_other_set_is_seen_once_a_pass():
    learns = Learns()
    config = PretrainOther(**FIELDS, epochs=2, batch_size=32)
    config.init_weights(network(), make_start(torch.zeros(4, 1, 8, 8), fit=learns))
    assert learns.sizes == [32, 32, 32, 4] * 2
    assert set(learns.labels) == set(range(10))


def test_images_of_other_channels_are_refused():
    model = Tiny().build(in_channels=3, num_classes=3, image_size=8)
    with pytest.raises(ConfigError, match=r"must have images of 3 channels.*1 channels"):
        PretrainOther(**FIELDS).init_weights(model, make_start(torch.zeros(4, 3, 8, 8)))


def test_path_of_the_data_is_made_absolute():
    folder = {"name": "image_folder", "root": "somewhere", "image_size": 8}
    recipe = make_recipe(speedups={"init": {"pretrain_other": {"dataset": folder}}}).located()
    located = recipe.speedups.init
    assert isinstance(located, PretrainOther) and isinstance(located.dataset, ImageFolder)
    assert located.dataset.root == str(Path("somewhere").absolute())
    assert isinstance(PretrainOther(**FIELDS).located().dataset, Digits)


def test_run_begins_with_what_was_learned_and_its_time_is_known_apart():
    def run(**speedups):
        recipe = make_recipe(model=Tiny(norm="batch"), epochs=1.0, speedups=speedups)
        return to_end(train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU)))

    plain, pretrained = run(), run(init={"pretrain_other": FIELDS})
    assert pretrained.init_s > 0 and plain.init_s == 0
    assert pretrained.evaluations[0].loss == plain.evaluations[0].loss
    assert pretrained.evaluations[0].train_s == 0
    assert pretrained.evaluations[-1].loss != plain.evaluations[-1].loss


def test_convolution_that_gives_logits_is_replaced_too():
    model, learns = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)), Learns()
    whole = nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    start = make_start(torch.zeros(4, 1, 8, 8), fit=learns)
    PretrainOther(**FIELDS).init_weights(whole, start)
    [learned] = learns.models
    assert learned[0][1].out_channels == 10 and whole[0][1].out_channels == 3
