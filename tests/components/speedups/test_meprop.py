import copy

import pytest
import torch
import torchvision
from torch import nn

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.modules.sparse_backward import (
    Geometry,
    SparseBackward,
    SparseConv2d,
    SparseConvolution,
    SparseLinear,
)
from tune_speed.components.speedups.network import MeProp
from tune_speed.core.errors import ConfigError

SAMPLES, INPUTS, WIDTH, K = 6, 4, 8, 3


def tensors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    sizes = ((SAMPLES, INPUTS), (WIDTH, INPUTS), (WIDTH,), (SAMPLES, WIDTH))
    x, w, b, dy = (torch.randn(*size, generator=generator, dtype=dtype) for size in sizes)
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), dy


def gradients(k, unified):
    x, w, b, dy = tensors()
    SparseBackward.apply(x, w, b, k, unified).backward(dy)
    return x.grad, w.grad, b.grad


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def sparse(model, **fields):
    config = MeProp(**fields)
    config.check_model(model)
    return config.change_model(model, num_classes=3, seed=0)


@pytest.mark.parametrize("unified", [True, False])
def test_full_width_is_what_autograd_computes(unified):
    x, w, b, dy = tensors()
    torch.nn.functional.linear(x, w, b).backward(dy)
    for actual, expected in zip(gradients(WIDTH, unified), (x, w, b), strict=True):
        torch.testing.assert_close(actual, expected.grad, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda *inputs: SparseBackward.apply(*inputs, WIDTH, unified), tensors()[:3]
    )


def test_unified_gradients_are_the_dense_ones_of_k_outputs():
    x, w, _, dy = (tensor.detach() for tensor in tensors())
    kept = set(sorted(range(WIDTH), key=lambda j: -dy[:, j].abs().sum())[:K])
    dx, dw, _ = gradients(K, unified=True)
    for j in range(WIDTH):
        dense = sum(dy[i, j] * x[i] for i in range(SAMPLES))
        torch.testing.assert_close(dw[j], dense if j in kept else torch.zeros_like(dense))
    torch.testing.assert_close(dx, sum(torch.outer(dy[:, j], w[j]) for j in kept))


def test_gradients_by_sample_use_each_samples_k_largest():
    x, w, _, dy = (tensor.detach() for tensor in tensors())
    dx, dw, _ = gradients(K, unified=False)
    expected = torch.zeros_like(w)
    for i in range(SAMPLES):
        kept = sorted(range(WIDTH), key=lambda j: -abs(dy[i, j]))[:K]
        torch.testing.assert_close(dx[i], sum(dy[i, j] * w[j] for j in kept))
        for j in kept:
            expected[j] += dy[i, j] * x[i]
    torch.testing.assert_close(dw, expected)


@pytest.mark.parametrize("unified", [True, False])
def test_bias_gets_the_whole_gradient_and_the_output_is_exact(unified):
    x, w, b, dy = tensors()
    torch.testing.assert_close(gradients(K, unified)[2], dy.sum(dim=0))
    plain = torch.nn.functional.linear(x, w, b)
    assert torch.equal(SparseBackward.apply(x, w, b, K, unified), plain)


def test_exactly_k_outputs_are_touched_in_hidden_layers_and_all_in_the_last():
    model = sparse(mlp(), k=5)
    images = torch.randn(7, 12)
    torch.nn.functional.cross_entropy(model(images), torch.arange(7) % 3).backward()
    touched = [(layer.weight.grad.abs().sum(dim=1) > 0).sum() for layer in list(model)[1::2]]
    # Of 16 outputs 5 are kept; in the second layer ReLU may have silenced some of the 5.
    assert touched[0] <= 5 and touched[1] <= 5 and touched[2] == 3
    assert type(model[5]) is nn.Linear and model[5].weight.grad is not None


def test_layers_with_no_more_than_k_outputs_are_exact():
    plain, model = mlp(), sparse(mlp(), k=16)
    images = torch.randn(7, 12)
    for net in (plain, model):
        net(images).square().sum().backward()
    grads = [[p.grad for p in net.parameters()] for net in (plain, model)]
    assert all(map(torch.equal, *grads))


def test_parameters_are_the_same_by_the_same_names():
    plain = mlp()
    parameters = dict(plain.named_parameters())
    model = sparse(plain, k=2)
    assert {k: id(p) for k, p in model.named_parameters()} == {
        k: id(p) for k, p in parameters.items()
    }
    assert torch.equal(copy.deepcopy(model)(torch.ones(1, 12)), mlp()(torch.ones(1, 12)))


@pytest.mark.parametrize("unified", [True, False])
def test_bf16_autocast_gives_fp32_gradients_near_the_exact_ones(unified):
    model, exact = sparse(mlp(), k=15, unified=unified), mlp()
    exact.load_state_dict(model.state_dict())
    exact = sparse(exact, k=15, unified=unified)
    images = torch.randn(64, 12, generator=torch.Generator().manual_seed(3))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model[1](images)
        loss = model(images).float().square().mean()
    loss.backward()
    exact(images).square().mean().backward()
    assert hidden.dtype == torch.bfloat16
    for low, high in zip(model.parameters(), exact.parameters(), strict=True):
        assert low.grad.dtype == torch.float32
        assert (low.grad - high.grad).norm() < 0.05 * high.grad.norm()


def test_leading_dimensions_are_samples():
    layer = SparseLinear(nn.Linear(4, 8, dtype=torch.float64), k=3, unified=False)
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    (layer(x) ** 2).sum().backward()
    rows = x.detach().reshape(10, 4).requires_grad_()
    (layer(rows) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, rows.grad.reshape(2, 5, 4))


@pytest.mark.parametrize(
    ("name", "num_layers"), [("vgg11", 2), ("alexnet", 2), ("vit_b_16", 24), ("resnet18", None)]
)
def test_networks_without_hidden_linear_layers_are_refused(name, num_layers):
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    if num_layers is None:
        with pytest.raises(ConfigError, match=r"backward\.meprop:"):
            MeProp().check_model(model)
        return
    found = [m for m in sparse(model).modules() if type(m) is SparseLinear]
    assert len(found) == num_layers


@pytest.mark.parametrize("k", [0, -1])
def test_impossible_k_is_refused(k):
    with pytest.raises(ValueError, match="k"):
        MeProp(k=k)


GEOMETRY = Geometry(stride=(2, 2), padding=(1, 1), dilation=(1, 1))
CHANNELS, K_SPARSE_CONVOLUTION = 6, 2


def tensors_of_sparse_convolution():
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 3, 5, 5), (CHANNELS, 3, 3, 3), (CHANNELS,), (2, CHANNELS, 3, 3))
    x, w, b, dy = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in sizes)
    return x.requires_grad_(), w.requires_grad_(), b.requires_grad_(), dy


def dense_gradients(dy):
    x, w, b, _ = tensors_of_sparse_convolution()
    nn.functional.conv2d(x, w, b, *GEOMETRY).backward(dy)
    return x.grad, w.grad, b.grad


def test_all_channels_are_what_autograd_computes():
    assert torch.autograd.gradcheck(
        lambda *inputs: SparseConvolution.apply(*inputs, CHANNELS, GEOMETRY),
        tensors_of_sparse_convolution()[:3],
    )


def test_gradients_are_those_of_k_channels_and_the_bias_gets_all():
    x, w, b, dy = tensors_of_sparse_convolution()
    output = SparseConvolution.apply(x, w, b, K_SPARSE_CONVOLUTION, GEOMETRY)
    assert torch.equal(output, nn.functional.conv2d(x, w, b, *GEOMETRY))
    output.backward(dy)
    kept = sorted(range(CHANNELS), key=lambda c: -dy[:, c].abs().sum())[:K_SPARSE_CONVOLUTION]
    masked = torch.zeros_like(dy)
    masked[:, kept] = dy[:, kept]
    dx, dw, _ = dense_gradients(masked)
    torch.testing.assert_close(x.grad, dx)
    torch.testing.assert_close(w.grad, dw)
    torch.testing.assert_close(b.grad, dense_gradients(dy)[2])
    assert (w.grad.abs().sum(dim=(1, 2, 3)) > 0).sum() == K_SPARSE_CONVOLUTION


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
