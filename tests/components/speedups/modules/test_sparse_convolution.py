import pytest
import torch
import torchvision
from torch import nn

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.modules.sparse_backward import (
    Geometry,
    SparseConv2d,
    SparseConvolution,
)
from tune_speed.components.speedups.network import MeProp
from tune_speed.core.errors import ConfigError

GEOMETRY = Geometry(stride=(2, 2), padding=(1, 1), dilation=(1, 1))
CHANNELS, K = 6, 2


def tensors():
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 3, 5, 5), (CHANNELS, 3, 3, 3), (CHANNELS,), (2, CHANNELS, 3, 3))
    x, w, b, dy = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in sizes)
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), dy


def dense_gradients(dy):
    x, w, b, _ = tensors()
    nn.functional.conv2d(x, w, b, *GEOMETRY).backward(dy)
    return x.grad, w.grad, b.grad


def test_all_channels_are_what_autograd_computes():
    assert torch.autograd.gradcheck(
        lambda *inputs: SparseConvolution.apply(*inputs, CHANNELS, GEOMETRY), tensors()[:3]
    )


def test_gradients_are_those_of_k_channels_and_the_bias_gets_all():
    x, w, b, dy = tensors()
    output = SparseConvolution.apply(x, w, b, K, GEOMETRY)
    assert torch.equal(output, nn.functional.conv2d(x, w, b, *GEOMETRY))
    output.backward(dy)
    kept = sorted(range(CHANNELS), key=lambda c: -dy[:, c].abs().sum())[:K]
    masked = torch.zeros_like(dy)
    masked[:, kept] = dy[:, kept]
    dx, dw, _ = dense_gradients(masked)
    torch.testing.assert_close(x.grad, dx)
    torch.testing.assert_close(w.grad, dw)
    torch.testing.assert_close(b.grad, dense_gradients(dy)[2])
    assert (w.grad.abs().sum(dim=(1, 2, 3)) > 0).sum() == K


def test_resnets_gain_by_their_convolutions_alone():
    torch.manual_seed(0)
    net = ResNet20().build(in_channels=3, num_classes=10, image_size=8)
    with pytest.raises(ConfigError, match="Try conv_frac"):
        MeProp().check_model(net)
    names = list(net.state_dict())
    config = MeProp(conv_frac=0.25)
    config.check_model(net)
    model = config.change_model(net, num_classes=10, seed=0)
    sparse = [m for m in model.modules() if isinstance(m, SparseConv2d)]
    assert [layer.k for layer in sparse] == [4] * 7 + [8] * 6 + [16] * 6
    assert list(model.state_dict()) == names
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images).float().square().mean()
    loss.backward()
    touched = [(layer.weight.grad.abs().sum(dim=(1, 2, 3)) > 0).sum() for layer in sparse]
    assert all(count <= layer.k for count, layer in zip(touched, sparse, strict=True))
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_the_output_convolution_is_exact():
    with torch.device("meta"):
        net = torchvision.models.squeezenet1_1(num_classes=10)
    model = MeProp(conv_frac=0.5).change_model(net, num_classes=10, seed=0)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert type(convolutions[-1]) is nn.Conv2d
    assert all(type(m) is SparseConv2d for m in convolutions[:-1])


def test_grouped_convolutions_are_exact():
    net = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 8, 3), nn.Linear(2, 2))
    model = MeProp(conv_frac=0.5).change_model(net, num_classes=2, seed=0)
    assert [type(m) for m in model] == [nn.Conv2d, SparseConv2d, nn.Linear]
