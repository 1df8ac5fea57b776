"""The class losses in a few calls of torch, for accelerators without Triton, run on the CPU against the plain twin."""

from __future__ import annotations

import pytest
import torch

from proxsvm._kernels import class_torch
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge
from tests.cases import class_weights

LOSSES = {"hinge": MultiClassHinge(), "smooth hinge": MultiClassHinge(smooth=True), "cross-entropy": CrossEntropy()}
each_kind = pytest.mark.parametrize("kind", LOSSES)


def batch(n, K, spread=2.0):
    torch.manual_seed(n + K)
    return spread * torch.randn(n, K), torch.randint(K, (n,))


def assert_same(kind, scores, target, weight=None, ignore=-100, reduction="mean"):
    given = {"weight": weight, "ignore_index": ignore, "reduction": reduction}
    loss = CrossEntropy(**given) if kind == "cross-entropy" else MultiClassHinge(smooth="smooth" in kind, **given)
    ours, twins = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    found = class_torch.value(kind, ours, target, weight, ignore, reduction == "mean")
    expected = ConvexLoss.forward(loss, twins, target)
    (2 * found).backward()
    (2 * expected).backward()
    torch.testing.assert_close(found, expected.detach(), atol=1e-12, rtol=1e-12, check_stride=False)
    torch.testing.assert_close(ours.grad, twins.grad, atol=1e-12, rtol=1e-12)
    return found


@each_kind
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (50, 33), (20, 100)], ids=str)
@pytest.mark.parametrize("spread", [0.1, 2.0, 30.0])
def test_it_is_the_plain_twin(kind, shape, spread):
    assert_same(kind, *batch(*shape, spread))


@each_kind
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_options(kind, reduction, weighted):
    scores, target = batch(40, 4)
    target[::7] = 2
    for ignore in (2, -100):
        target[3] = ignore
        assert_same(kind, scores, target, class_weights() if weighted else None, ignore, reduction)


@each_kind
def test_masked_classes(kind):
    scores, target = batch(6, 5)
    scores[0, (target[0] + 1) % 5] = scores[1, (target[1] + 2) % 5] = -torch.inf
    scores[2, torch.arange(5) != target[2]] = -torch.inf
    assert_same(kind, scores, target)
    scores[4, target[4]] = -torch.inf  # the true class: an infinite loss, as torch's is
    assert class_torch.value(kind, scores, target, None, -100, True) == torch.inf


@each_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(kind, bad):
    scores, target = batch(6, 70)
    scores[3, (target[3] + 40) % 70] = bad
    assert not class_torch.value(kind, scores, target, None, -100, True).isfinite()
    target[3] = -100
    assert class_torch.value(kind, scores, target, None, -100, True).isfinite()


@each_kind
@pytest.mark.parametrize("wrong", [5, -1])
def test_a_class_that_does_not_exist_is_refused(kind, wrong):
    scores, target = batch(6, 5)
    target[2] = wrong
    with pytest.raises(IndexError, match="out of bounds"):
        class_torch.value(kind, scores, target, None, -100, True)


@each_kind
def test_its_gradient_can_be_differentiated(kind):
    scores, target = batch(4, 3)
    weight = torch.ones((), requires_grad=True)
    u = scores.requires_grad_()
    (s,) = torch.autograd.grad(weight * class_torch.value(kind, u, target, None, -100, True), u, create_graph=True)
    (found,) = torch.autograd.grad((s * s.detach()).sum(), weight)
    torch.testing.assert_close(found, s.detach().square().sum())
