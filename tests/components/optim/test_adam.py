import numpy as np
import torch
from torch import nn

from tune_speed.components.optim.optimizers import Adam

LR, DECAY, BETA1, BETA2, EPS = 0.1, 0.05, 0.8, 0.95, 1e-3
GRADIENTS = np.array([[1.0, -2.0], [0.5, 0.25], [-3.0, 1.0]])


def steps_by_hand(weight):
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for t, raw in enumerate(GRADIENTS, start=1):
        gradient = raw + DECAY * weight
        mean = BETA1 * mean + (1 - BETA1) * gradient
        square = BETA2 * square + (1 - BETA2) * gradient**2
        root = np.sqrt(square / (1 - BETA2**t))
        weight = weight - LR * mean / (1 - BETA1**t) / (root + EPS)
    return weight


def test_adam_equals_the_formula_with_coupled_decay_in_float64():
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().numpy()[0].copy()
    config = Adam(lr=LR, weight_decay=DECAY, beta1=BETA1, beta2=BETA2, eps=EPS)
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    for gradient in GRADIENTS:
        model.weight.grad = torch.tensor(gradient)[None]
        optimizer.step()
    np.testing.assert_allclose(model.weight.detach().numpy()[0], steps_by_hand(start), rtol=1e-12)
