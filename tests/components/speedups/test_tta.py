import pytest
import torch
from torch import nn
from torch.nn import functional

from tune_speed.components.speedups.evaluation import Tta


class Recorder(nn.Module):
    """Gives each view's number as logit of class 0, and keeps the views."""

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
