import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.evaluation import Ema, Tta
from tune_speed.components.speedups.modules.ema import MovingAverage


def averaged(values, *, half_life, every=1):
    model = nn.Linear(1, 1, bias=False)
    average = MovingAverage(model, half_life=half_life, every=every)
    seen = []
    for step, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        average.update(model, frac=step / len(values))
        seen.append(average.model.weight.item())
    return seen


def test_average_weighs_steps_by_their_age_in_half_lives():
    values, half_life = [3.0, -1.0, 4.0, 1.0, 5.0], 0.3
    for count, result in enumerate(averaged(values, half_life=half_life), start=1):
        ages = (count - np.arange(1, count + 1)) / len(values)
        expected = np.average(values[:count], weights=0.5 ** (ages / half_life))
        assert result == pytest.approx(expected, rel=1e-6)


def test_first_weights_are_taken_over_whole():
    assert averaged([7.0, 7.0], half_life=1.0)[0] == 7.0


def test_same_half_life_means_the_same_for_a_run_of_any_length():
    ends = [
        averaged(np.linspace(0, 1, steps).tolist(), half_life=0.1)[-1] for steps in (1000, 4000)
    ]
    # ∫ of a ramp under exponential weights: 1 − h / ln 2, less what a finite run cuts off.
    assert ends == pytest.approx([1 - 0.1 / np.log(2)] * 2, abs=0.003)


def test_only_every_nth_step_and_the_last_count():
    seen = averaged([1.0, 2, 3, 4, 5, 6], half_life=1e-3, every=4)
    assert seen == pytest.approx([1, 1, 1, 1, 5, 6])


def test_statistics_are_averaged_and_counts_copied():
    model = nn.BatchNorm1d(2)
    average = MovingAverage(model, half_life=0.5, every=1)
    for step in (1, 2):
        model(torch.randn(8, 2) + 5)
        average.update(model, frac=step / 2)
        if step == 1:
            first = model.running_mean.clone()
    assert average.model.num_batches_tracked == 2
    weight = (1 - 0.5) / (1 - 0.25)
    assert torch.allclose(average.model.running_mean, first.lerp(model.running_mean, weight))


def test_training_goes_on_with_its_own_weights():
    model = ResNet20().network(in_channels=1, num_classes=3, image_size=8)
    average = Ema(every=1).averager(model)
    before = [p.clone() for p in model.parameters()]
    average.update(model, frac=0.5)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, average.model.parameters(), model.parameters()))
    assert all(p.requires_grad for p in model.parameters())
    assert {id(p) for p in model.parameters()}.isdisjoint(map(id, average.model.parameters()))


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.views = []

    def forward(self, images):
        self.views.append(images)
        return images.flatten(1)


def test_two_views_are_the_image_and_its_mirror_image():
    model, images = Recorder(), torch.randn(3, 2, 4, 5)
    logits = Tta(views=2).predict(model, images)
    assert torch.equal(model.views[0], images)
    assert torch.equal(model.views[1], torch.flip(images, dims=[-1]))
    assert torch.allclose(logits, ((images + images.flip(-1)) / 2).flatten(1))


def test_six_views_are_these_at_three_places_with_one_half_unshifted():
    model, images = Recorder(), torch.randn(3, 2, 4, 5)
    logits = Tta(views=6).predict(model, images)
    assert len(model.views) == 6 and all(view.shape == images.shape for view in model.views)
    padded = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    places = [(images, 0.5), (padded[:, :, 2:, 2:], 0.25), (padded[:, :, :4, :5], 0.25)]
    expected = sum(w / 2 * (view + view.flip(-1)) for view, w in places)
    assert torch.allclose(logits, expected.flatten(1), atol=1e-6)


def test_shifts_move_the_image_by_one_pixel():
    model = Recorder()
    images = torch.zeros(1, 1, 5, 5)
    images[0, 0, 2, 2] = 1
    Tta(views=6).predict(model, images)
    places = {tuple(view[0, 0].nonzero()[0].tolist()) for view in model.views}
    assert {(1, 1), (2, 2), (3, 3)} <= places


def test_symmetric_model_is_left_alone_by_the_mirror():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(4, 3, 6, 6)
    assert torch.allclose(Tta().predict(model, images), model(images), atol=1e-6)


@pytest.mark.parametrize("views", [1, 3, 0])
def test_other_numbers_of_views_are_refused(views):
    with pytest.raises(ValueError, match="views"):
        Tta(views=views)
