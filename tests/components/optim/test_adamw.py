import torch
from torch import nn

from tune_speed.components.optim.optimizers import AdamW


def test_adamw_takes_the_steps_of_torch():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    config = AdamW(lr=0.02, weight_decay=0.1, beta1=0.85, beta2=0.97, eps=1e-6)
    config = config.model_copy(update={"decay_norms_and_biases": True})
    optimizers = [
        config.build(ours, effective_batch_size=64, fused=False),
        torch.optim.AdamW(
            theirs.parameters(), lr=0.02, weight_decay=0.1, betas=(0.85, 0.97), eps=1e-6
        ),
    ]
    for step in range(5):
        inputs = torch.full((4, 5), float(step))
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=0, atol=0)
