"""What public training scripts do around an optimizer: each pattern against γ and the step written out by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from proxsvm import ProxOptimizer
from proxsvm.losses import BinaryCrossEntropy, MultiClassHinge
from proxsvm.solvers import SingleStepFW

ETA, STEPS = 5.0, 12  # an η that γ has to correct
pytestmark = pytest.mark.parametrize("fused", [None, False], ids=["compiled", "torch"])


def network(width: int = 8, out: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, out)).double()


def batches(count: int = STEPS, n: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, n, 4, generator=generator, dtype=torch.float64)
    return list(zip(x, x[..., :3].argmax(-1), strict=True))


def optimizer_of(loss, params, fused, **options):
    return ProxOptimizer(loss, SingleStepFW(), params, lr=ETA, fused=fused, **options)


def by_hand(params: list[Tensor], value: Tensor) -> float:
    """w ← w − γη g with γ = min(1, value / (η ‖g‖²)); returns γ. ``value`` is everything that is differentiated."""
    grads = torch.autograd.grad(value, params, allow_unused=True)
    grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
    squared = sum(float((g * g).sum()) for g in grads)
    gamma = min(1.0, float(value.detach()) / (ETA * squared)) if squared else 0.0
    with torch.no_grad():
        for p, g in zip(params, grads, strict=True):
            p -= gamma * ETA * g
    return gamma


def assert_same(model: nn.Module, twin: nn.Module) -> None:
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-10)


def test_alternation_as_in_a_gan(fused):
    """The discriminator on real and detached fake samples, the generator through it; one criterion for both."""
    generator, judge = network(out=4), network(out=1)
    twins = copy.deepcopy((generator, judge))
    criterion = BinaryCrossEntropy()
    of_g, of_d = (optimizer_of(criterion, m.parameters(), fused) for m in (generator, judge))

    def bce(scores: Tensor, label: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))

    for real, _ in batches():
        noise = real.flip(0)
        fake = generator(noise)
        of_d.zero_grad()
        criterion(judge(real), torch.ones(len(real), 1)).backward()
        criterion(judge(fake.detach()), torch.zeros(len(real), 1)).backward()
        of_d.step()
        of_g.zero_grad()
        criterion(judge(fake), torch.ones(len(real), 1)).backward()  # leaves gradients in the judge, too
        of_g.step()
        g, d = twins
        gammas = [by_hand(list(d.parameters()), bce(d(real), 1.0) + bce(d(g(noise).detach()), 0.0))]
        gammas.append(by_hand(list(g.parameters()), bce(d(g(noise)), 1.0)))
        found = [float(o.last.gamma) for o in (of_d, of_g)]
        assert found == pytest.approx(gammas, abs=1e-10)
    assert_same(generator, twins[0])
    assert_same(judge, twins[1])


@pytest.mark.parametrize("how", ["left out", "given and frozen", "frozen later"])
def test_a_frozen_backbone(how, fused):
    model, criterion = network(), MultiClassHinge(smooth=True)
    twin, before = copy.deepcopy(model), copy.deepcopy(model[0])
    if how != "frozen later":
        model[0].requires_grad_(False)
    params = model[2].parameters() if how == "left out" else model.parameters()
    optimizer = optimizer_of(criterion, params, fused, momentum=0.0)
    model[0].requires_grad_(False)
    for x, y in batches():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        by_hand(list(twin[2].parameters()), MultiClassHinge(smooth=True)(twin(x), y))
    assert_same(model, twin)
    assert_same(model[0], before)
    assert all(p not in optimizer.state for p in model[0].parameters())
