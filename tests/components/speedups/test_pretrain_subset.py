import pytest
import torch
from starting import make_start
from torch import nn

from tune_speed.components.speedups.initial_weights import PretrainSubset

IMAGES = torch.arange(100.0).reshape(-1, 1, 1, 1)


class Recorder:
    """Takes down the images that it is to train on."""

    def __init__(self):
        self.models, self.batches = [], []

    def __call__(self, model, batches, num_steps):
        self.models.append(model)
        self.batches += [images.flatten().tolist() for images, _ in batches]
        assert len(self.batches) <= num_steps


def pretrained(**fields):
    recorder, model = Recorder(), nn.Linear(1, 1)
    start = make_start(IMAGES, batch_size=8, fit=recorder)
    PretrainSubset(**fields).init_weights(model, start)
    assert recorder.models == [model]
    return recorder.batches


@pytest.mark.parametrize(("part", "num_batches"), [(0.01, 1), (0.08, 1), (0.5, 7), (1.0, 13)])
def test_part_is_rounded_up_to_whole_batches(part, num_batches):
    assert len(pretrained(part=part)) == num_batches


def test_each_pass_shows_the_same_images():
    batches = pretrained(part=0.2, epochs=3)
    assert batches[:3] == batches[3:6] == batches[6:]
    seen = [image for batch in batches[:3] for image in batch]
    assert len(set(seen)) == len(seen) == 24


def test_part_is_not_the_beginning_of_the_run():
    first, _ = next(make_start(IMAGES, batch_size=8).batches(0))
    assert pretrained(part=0.01)[0] != first.flatten().tolist()
