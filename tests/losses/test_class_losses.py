"""What users of nn.CrossEntropyLoss expect of every loss over classes."""

import pytest
import torch
from torch import nn

from proxsvm import ProxProblem
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge, TopKHinge, WestonWatkinsHinge
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import K, class_weights, cost_matrix

KINDS = {
    "hinge": MultiClassHinge,
    "hinge-smooth": lambda **options: MultiClassHinge(smooth=True, **options),
    "hinge-cost": lambda **options: MultiClassHinge(cost_matrix(), **options),
    "top-2": lambda **options: TopKHinge(2, **options),
    "weston-watkins": WestonWatkinsHinge,
    "cross-entropy": CrossEntropy,
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def batch(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    u = 3 * torch.randn(shape[0], K, *shape[1:], generator=generator, dtype=dtype)
    return u.requires_grad_(), torch.randint(K, shape, generator=generator)


def both(loss, u, y):
    """Value and gradient, which are the atom's as well."""
    value = loss(u, y)
    (gradient,) = torch.autograd.grad(value, u)
    problem = ProxProblem.from_scores(loss, u, y, [u], lr=1.0)
    torch.testing.assert_close(problem.first().delta[0], gradient)
    torch.testing.assert_close(problem.first().lam, value.detach())
    return value.detach(), gradient


@each_kind
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore", [-100, 255, 1])
def test_ignored_samples_do_not_count(kind, reduction, ignore):
    u, y = batch(8)
    y[[1, 4]] = ignore
    kept = y != ignore
    value, gradient = both(kind(reduction=reduction, ignore_index=ignore), u, y)
    expected = kind(reduction=reduction)(u[kept], y[kept])
    torch.testing.assert_close(value, expected.detach())
    assert not gradient[~kept].any()
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, u)[0])
    each = kind(reduction="none", ignore_index=ignore)(u, y)
    assert not each[~kept].any()


@each_kind
def test_a_batch_without_a_sample_that_counts_is_nan_as_in_torch(kind):
    u, _ = batch(3)
    y = torch.full((3,), -100)
    assert nn.CrossEntropyLoss()(u, y).isnan()
    assert kind()(u, y).isnan()
    assert kind(reduction="sum")(u, y) == 0


@each_kind
@pytest.mark.parametrize("weight", [None, class_weights()], ids=["", "class weights"])
@pytest.mark.parametrize("omega", [None, torch.rand(8)], ids=["", "sample weights"])
def test_reductions_and_weights_are_torchs(kind, weight, omega):
    u, y = batch(8)
    each = kind(reduction="none")(u, y)
    p = torch.ones(8) if omega is None else omega.double()
    p = p if weight is None else p * weight[y]
    torch.testing.assert_close(kind(weight=weight, reduction="none")(u, y, omega), p * each)
    torch.testing.assert_close(kind(weight=weight, reduction="sum")(u, y, omega), (p * each).sum())
    torch.testing.assert_close(kind(weight=weight)(u, y, omega), (p * each).sum() / p.sum())
    if omega is None:
        both(kind(weight=weight), u, y)


@each_kind
def test_pixels_are_samples(kind):
    u, y = batch(2, 3, 5)
    y[0, 1, 2] = -100
    flat, labels = u.movedim(1, -1).reshape(-1, K), y.reshape(-1)
    for options in ({}, {"weight": class_weights()}, {"reduction": "sum"}):
        torch.testing.assert_close(kind(**options)(u, y), kind(**options)(flat, labels))
    each = kind(reduction="none")(u, y)
    assert each.shape == y.shape
    torch.testing.assert_close(each.reshape(-1), kind(reduction="none")(flat, labels))
    omega = torch.rand(y.shape)
    torch.testing.assert_close(kind()(u, y, omega), kind()(flat, labels, omega.reshape(-1)))
    channels_last = u.detach().to(memory_format=torch.channels_last).requires_grad_()
    for v in (u, channels_last):
        (gradient,) = torch.autograd.grad(kind()(v, y), v)
        torch.testing.assert_close(gradient, torch.autograd.grad(kind()(flat, labels), u, retain_graph=True)[0])


@each_kind
@each_dtype
def test_a_masked_class_is_as_if_it_were_not_there(kind, dtype):
    u, _ = batch(6, dtype=dtype)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    masked = u.detach().clone()
    masked[:, 3] = -torch.inf
    value, gradient = both(kind(), masked.requires_grad_(), y)
    without = kind()
    if getattr(without, "cost", None) is not None:
        without.cost = without.cost[:3, :3]
    expected = without(u[:, :3].contiguous(), y)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient[:, :3], torch.autograd.grad(expected, u)[0][:, :3])
    assert not gradient[:, 3].any()


@each_kind
@each_dtype
def test_a_row_with_nothing_but_the_true_class_has_no_loss(kind, dtype):
    u = torch.full((2, K), -torch.inf, dtype=dtype)
    u[0, 0], u[1] = 1.5, torch.tensor([0.0, 0.3, 2.1, 1.0])
    value, gradient = both(kind(reduction="sum"), u.requires_grad_(), torch.tensor([0, K - 1]))
    only = kind(reduction="sum")(u[1:], torch.tensor([K - 1]))
    torch.testing.assert_close(value, only.detach())
    assert not gradient[0].any()


@each_kind
@each_dtype
def test_a_masked_true_class_has_an_infinite_loss_as_in_torch(kind, dtype):
    u, y = batch(3, dtype=dtype)
    u = u.detach().clone()
    u[1, y[1]] = -torch.inf
    assert nn.CrossEntropyLoss()(u, y) == torch.inf
    assert kind()(u, y) == torch.inf
    y[1] = -100  # but not where it does not count
    assert kind()(u, y).isfinite()


@each_kind
def test_masked_classes_in_every_solver(kind):
    """Finite certified gaps, and ExactQP agrees."""
    torch.manual_seed(0)
    w, x, y = torch.randn(5, K, requires_grad=True), torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    scores = (x @ w).masked_fill(torch.tensor([False, False, False, True]), -torch.inf)
    problem = ProxProblem.from_scores(kind(), scores, y, [w], lr=0.5)
    exact = ExactQP().solve(problem)
    assert problem.gap(exact) == pytest.approx(0, abs=1e-5)
    for solver in (SingleStepFW(), MultiStepFW(30, tol=0.0), CorrectiveFW(30, tol=0.0)):
        point = solver.solve(problem)
        assert -1e-9 <= float(problem.gap(point)) < torch.inf
        assert float(problem.dual(point)) <= float(problem.primal(exact)) + 1e-6
        assert not problem.displacement(point)[0][:, 3].any()


@each_kind
@each_dtype
@pytest.mark.parametrize("at", [0, 1])
def test_nan_scores_make_the_value_nan_and_raise_nothing(kind, dtype, at):
    u, _ = batch(4, dtype=dtype)
    u = u.detach().clone()
    u[2, at] = torch.nan
    y = torch.zeros(4, dtype=torch.long)
    assert kind()(u, y).isnan()


@pytest.mark.parametrize("at", [-1, K, 10**9])
def test_a_class_index_that_changes_after_its_check_is_an_error_and_no_read_outside(at):
    """A thread may write the targets between the check and the use: every use checks its bounds again."""

    class Raced(MultiClassHinge):
        def classes(self, scores, target):
            return torch.full_like(target, at)

    for smooth in (False, True):
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            Raced(smooth=smooth)(torch.randn(3, K), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("far", [0.0, 4.0], ids=["mixed", "margins met"])
@pytest.mark.parametrize("cost", [None, cost_matrix()], ids=["0/1", "cost"])
def test_the_smoothed_hinge_is_the_plain_one_wherever_smoothing_cannot_help(far, cost):
    """Rows that are searched alone, and all rows at once, as on an accelerator: one value, one gradient."""
    torch.manual_seed(0)
    y = torch.randint(K, (40,))
    u = (2 * torch.randn(40, K) + far * torch.eye(K)[y]).requires_grad_()
    loss = MultiClassHinge(cost, smooth=True, reduction="none")
    hinge, soft = MultiClassHinge(cost, reduction="none")(u, y), loss.smoothed(u.detach(), y)
    expected = torch.where(soft.value > 0, soft.value, hinge)
    assert 0 < int((soft.value > 0).sum()) < 40
    torch.testing.assert_close(loss(u, y), expected)
    (gradient,) = torch.autograd.grad(loss(u, y).sum(), u)
    (of_hinge,) = torch.autograd.grad(hinge.sum(), u)
    torch.testing.assert_close(gradient, torch.where(soft.value[:, None] > 0, soft.s, of_hinge))
    everywhere = ConvexLoss.direction(loss, u.detach(), y)
    torch.testing.assert_close(everywhere.s, gradient)
    torch.testing.assert_close(everywhere.offset, loss.direction(u.detach(), y).offset)
    each = torch.func.vmap(lambda u, y: loss(u[None], y[None])[0])(u.detach(), y)
    torch.testing.assert_close(each, expected)
    compiled = torch.compile(lambda u: loss(u, y), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(u), expected)
    torch.testing.assert_close(torch.autograd.grad(compiled(u).sum(), u)[0], gradient)
