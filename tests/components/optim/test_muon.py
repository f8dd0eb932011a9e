import numpy as np
import pytest
import timm
import torch
from helpers.components.references import by_hand
from torch import nn

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Muon, hidden_weights
from tune_speed.components.optim.torch.muon import (
    COEFFICIENTS,
    newton_schulz,
    orthogonalized,
)
from tune_speed.components.speedups.losses import EasiestFirst
from tune_speed.components.speedups.network import Boosted


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 3, 3),
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(4, 12),
        nn.Linear(12, 2),
    )
    return nn.Sequential(*layers).to(dtype)


def names(model):
    hidden = hidden_weights(model)
    return {name for name, p in model.named_parameters() if id(p) in hidden}


def gradients_for(model, num_steps):
    generator = torch.Generator().manual_seed(1)
    return [
        {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for name, p in model.named_parameters()
        }
        for _ in range(num_steps)
    ]


def run(config, model, gradients):
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    for step in gradients:
        for name, p in model.named_parameters():
            p.grad = step[name].clone()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in model.named_parameters()}


def steps_by_hand(weight, gradients, *, lr, momentum, nesterov, decay, iterations):
    """One weight in numpy; `iterations` None is SGD."""
    buffer, rows = np.zeros_like(weight), len(weight)
    scale = 1.0 if iterations is None else np.sqrt(max(1, rows * rows / weight.size))
    for gradient in gradients:
        weight = weight - lr * decay * weight
        buffer = momentum * buffer + gradient
        update = gradient + momentum * buffer if nesterov else buffer
        if iterations is not None:
            update = by_hand(update.reshape(rows, -1), iterations).reshape(update.shape)
        weight = weight - lr * scale * update
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
def test_every_weight_moves_as_the_formula_says_in_float64(nesterov):
    model = network()
    gradients = gradients_for(model, 4)
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    config = Muon(
        lr=0.2,
        sgd_lr=0.05,
        weight_decay=0.1,
        momentum=0.8,
        nesterov=nesterov,
        newton_schulz_steps=3,
    )
    found = run(config, model, gradients)
    for name, weight in start.items():
        is_hidden = name in {"1.weight", "4.weight"}
        expected = steps_by_hand(
            weight,
            [step[name].numpy() for step in gradients],
            lr=0.2 if is_hidden else 0.05,
            momentum=0.8,
            nesterov=nesterov,
            decay=0.1 if weight.ndim > 1 else 0.0,
            iterations=3 if is_hidden else None,
        )
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("fused", [True, False])
def test_biases_and_other_weights_of_sgd_have_their_own_rates_and_momentum(fused):
    model = network()
    gradients = gradients_for(model, 3)
    start = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    config = Muon(lr=0.2, sgd_lr=0.05, bias_lr=1.5, momentum=0.6, sgd_momentum=0.85)
    optimizer = config.build(model, effective_batch_size=1, fused=fused)
    for step in gradients:
        for name, p in model.named_parameters():
            p.grad = step[name].clone()
        optimizer.step()
    for name, p in model.named_parameters():
        is_hidden = name in {"1.weight", "4.weight"}
        expected = steps_by_hand(
            start[name],
            [step[name].numpy() for step in gradients],
            lr=0.2 if is_hidden else 1.5 if p.ndim == 1 else 0.05,
            momentum=0.6 if is_hidden else 0.85,
            nesterov=True,
            decay=0.0,
            iterations=5 if is_hidden else None,
        )
        np.testing.assert_allclose(p.detach().numpy(), expected, atol=1e-12, err_msg=name)


def test_hidden_matrices_take_the_steps_of_torchs_muon():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(n, m, bias=False) for n, m in [(3, 6), (6, 9), (9, 4), (4, 2)])
    )
    copies = [nn.Parameter(model[i].weight.detach().clone()) for i in (1, 2)]
    theirs = torch.optim.Muon(copies, lr=0.1, weight_decay=0.2, momentum=0.9)
    gradients = gradients_for(model, 5)
    found = run(Muon(lr=0.1, weight_decay=0.2, momentum=0.9), model, gradients)
    for step in gradients:
        for copied, name in zip(copies, ("1.weight", "2.weight"), strict=True):
            copied.grad = step[name].clone()
        theirs.step()
    for copied, name in zip(copies, ("1.weight", "2.weight"), strict=True):
        # Torch computes in bfloat16, whose unit is 0.4 %: five steps of 0.1.
        np.testing.assert_allclose(found[name], copied.detach().numpy(), atol=0.01)


def test_a_step_of_a_hidden_convolution_is_orthogonal_over_its_flattened_filters():
    model = network()
    before = model[1].weight.detach().clone()
    run(Muon(lr=0.1), model, gradients_for(model, 1))
    step = (before - model[1].weight.detach()) / 0.1
    values = torch.linalg.svdvals(step.reshape(4, 27))
    assert values.min() > 0.68 and values.max() < 1.14


def test_hidden_are_the_matrices_between_the_first_and_the_last():
    assert names(network()) == {"1.weight", "4.weight"}
    assert names(nn.Linear(3, 2)) == set()
    assert names(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))) == set()


def test_a_frozen_first_layer_still_counts_as_the_first():
    model = network()
    model[0].requires_grad_(False)
    assert names(model) == {"1.weight", "4.weight"}
    optimizer = Muon(lr=0.1).build(model, effective_batch_size=1, fused=False)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model[0].weight) not in held


def test_class_heads_are_left_to_sgd_wherever_they_are_registered():
    """K. Jordan: embeddings and final classifiers go to the other optimizer."""
    model = ResNet20().network(in_channels=3, num_classes=4, image_size=8)
    plain = names(model)
    tasks = EasiestFirst(groups=(0, 0, 1, 1)).change_model(model, num_classes=4, seed=0)
    assert names(tasks) == plain
    model = ResNet20().network(in_channels=3, num_classes=4, image_size=8)
    staged = Boosted(stages=3).change_model(model, num_classes=4, seed=0)
    assert {name.removeprefix("net.") for name in names(staged)} == plain


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("deit_tiny_distilled_patch16_224", set()),
        ("volo_d1_224", set()),
        ("caformer_s18", {"head.fc.fc1.weight"}),
    ],
)
def test_all_heads_of_a_model_of_timm_are_left_to_sgd(name, hidden):
    model = timm.create_model(name, num_classes=4)
    assert {name for name in names(model) if "head" in name} == hidden


def test_depthwise_filters_and_tokens_are_no_matrices():
    model = network()
    model.insert(1, nn.Conv2d(3, 3, 3, groups=3, bias=False))
    assert names(model) == {"2.weight", "5.weight"}
    model.register_parameter("token", nn.Parameter(torch.zeros(1, 5, 8)))
    assert names(model) == {"2.weight", "5.weight"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalized_weights_start_each_step_with_the_norm_of_their_rows(dtype):
    model = network(dtype)
    gradients = gradients_for(model, 1)
    with torch.no_grad():
        model[1].weight.mul_(7)
    optimizer = Muon(lr=0.1, normalize_weights=True).build(
        model, effective_batch_size=1, fused=False
    )
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = model[0].weight.detach().clone()
    for name, p in model.named_parameters():
        p.grad = gradients[0][name]
    optimizer.step()
    assert model[1].weight.norm().item() == pytest.approx(2.0)
    assert model[4].weight.norm().item() == pytest.approx(12**0.5)
    assert torch.equal(model[0].weight, before)


def test_both_rates_follow_the_batch_size():
    config = Muon(lr=0.2, sgd_lr=0.05, lr_per_examples=100)
    optimizer = config.build(network(), effective_batch_size=300, fused=False)
    rates = {group["orthogonal"]: group["base_lr"] for group in optimizer.param_groups}
    assert rates == {True: pytest.approx(0.6), False: pytest.approx(0.15)}


def test_rate_of_biases_follows_the_batch_size_too():
    config = Muon(lr=0.2, bias_lr=3.0, lr_per_examples=100)
    optimizer = config.build(network(), effective_batch_size=50, fused=False)
    found = {
        (p.ndim > 1, group["orthogonal"]): group["base_lr"]
        for group in optimizer.param_groups
        for p in group["params"]
    }
    expected = {(True, True): 0.1, (True, False): 0.1, (False, False): 1.5}
    assert found == pytest.approx(expected)


# The least and largest value of the polynomial's fixed band, found by iterating it on numbers.
BAND = (0.68, 1.14)


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_band_is_where_the_polynomial_ends_for_values_down_to_a_hundredth():
    a, b, c = COEFFICIENTS
    s = np.linspace(0.01, 1.0, 100_000)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    assert BAND[0] < s.min() < 0.7
    assert 1.1 < s.max() < BAND[1]


@pytest.mark.parametrize("shape", [(16, 16), (16, 27), (64, 10), (8, 3, 3, 3), (8, 6, 1, 1)])
def test_singular_values_end_near_one_and_singular_vectors_stay(shape):
    tensor = random(*shape)
    (result,) = orthogonalized([tensor], num_iterations=5)
    assert result.shape == tensor.shape
    before, after = tensor.reshape(len(tensor), -1), result.reshape(len(tensor), -1)
    values = torch.linalg.svdvals(after)
    large = torch.linalg.svdvals(before / before.norm()) > 0.01
    assert BAND[0] < values[large].min() and values.max() < BAND[1]
    u, _, vt = torch.linalg.svd(before, full_matrices=False)
    diagonal = u.T @ after @ vt.T
    torch.testing.assert_close(diagonal, torch.diag(diagonal.diag()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_iterations", [1, 3, 5])
@pytest.mark.parametrize("shape", [(5, 5), (4, 9), (9, 4)])
def test_the_iteration_is_the_polynomial_of_the_singular_values_in_float64(shape, num_iterations):
    matrix = random(*shape, seed=1)
    (result,) = orthogonalized([matrix], num_iterations=num_iterations)
    np.testing.assert_allclose(result.numpy(), by_hand(matrix.numpy(), num_iterations), atol=1e-12)


def test_a_batch_gives_what_each_matrix_gives_alone_in_the_order_given():
    tensors = [
        random(*shape, seed=i) for i, shape in enumerate([(4, 6), (6, 4), (3, 2, 3), (4, 6)])
    ]
    together = orthogonalized(tensors, num_iterations=3)
    alone = [orthogonalized([tensor], num_iterations=3)[0] for tensor in tensors]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_zero_matrix_stays_zero():
    assert not newton_schulz(torch.zeros(1, 3, 4), 5).any()


def test_scale_does_not_matter():
    matrix = random(4, 6)
    small, large = orthogonalized([1e-5 * matrix, 1e5 * matrix], num_iterations=5)
    torch.testing.assert_close(small, large, rtol=1e-9, atol=1e-9)
