"""The smooth losses: torch's values and gradients to the last digits, and a dual that certifies their steps."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from proxsvm import ProxProblem
from proxsvm._scores import inner
from proxsvm.losses import BinaryCrossEntropy, ConvexLoss, CrossEntropy, Huber, SmoothLoss, SquaredError
from proxsvm.losses.base import like, parts
from proxsvm.solvers import CorrectiveFW, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import LOSSES, K, LossCase, class_weights, expanded, vector
from tests.cases import PaperOptimizer as ProxOptimizer

SMOOTH = [case for case in LOSSES if isinstance(case.loss(), SmoothLoss)]
CLOSE = {"rtol": 1e-12, "atol": 1e-13}
each_smooth_loss = pytest.mark.parametrize("case", SMOOTH, ids=repr)


def assert_same(ours, theirs, u, **tolerance) -> None:
    """Value and gradient, and the gradient of the gradient's norm."""
    found = []
    for f in (ours, theirs):
        value = f(u)
        (gradient,) = torch.autograd.grad(value, u, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), u)
        found.append((value.detach(), torch.autograd.grad(f(u), u)[0], gradient.detach(), second))
    torch.testing.assert_close(*found, **(tolerance or CLOSE))


def test_label_smoothing_in_double_precision_whatever_the_default_dtype_is():
    u, y = torch.randn(6, 3, dtype=torch.double, requires_grad=True), torch.tensor([0, 1, 2, 0, -100, 1])
    torch.set_default_dtype(torch.float32)  # as a user has it; the tests' own is restored by their fixture
    criterion = CrossEntropy(label_smoothing=0.1, reduction="sum")
    (expected,) = torch.autograd.grad(F.cross_entropy(u, y, label_smoothing=0.1, reduction="sum"), u)
    atom = criterion.oracle(u.detach(), y)
    torch.testing.assert_close(atom.s * (y != -100)[:, None], expected, **CLOSE)
    torch.testing.assert_close(atom.b(u.detach()), atom.value, **CLOSE)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("ignore", [-100, 1])
def test_the_cross_entropy_is_torchs(shape, reduction, smoothing, weighted, soft, ignore):
    torch.manual_seed(0)
    u = (3 * torch.randn(shape[0], K, *shape[1:])).requires_grad_()
    y = torch.randn_like(u).softmax(1) if soft else torch.randint(K, shape)
    if not soft:
        y.view(-1)[0] = ignore
    options = {"weight": class_weights() if weighted else None, "label_smoothing": smoothing, "ignore_index": ignore}
    ours, each = CrossEntropy(reduction=reduction, **options), CrossEntropy(reduction="none", **options)(u, y)
    if soft:  # of probabilities there is no class to ignore, and torch refuses one
        options["ignore_index"] = -100
    theirs = nn.CrossEntropyLoss(reduction=reduction, **options)
    assert_same(lambda u: ours(u, y), lambda u: theirs(u, y), u)
    assert_same(lambda u: ConvexLoss.forward(ours, u, y), lambda u: theirs(u, y), u)
    torch.testing.assert_close(each, nn.CrossEntropyLoss(reduction="none", **options)(u, y), **CLOSE)


@pytest.mark.parametrize("weight", [None, torch.rand(K), torch.rand(6, 1)], ids=["none", "outputs", "samples"])
@pytest.mark.parametrize("pos_weight", [None, torch.rand(K), torch.tensor(3.0)], ids=["none", "outputs", "one"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_binary_cross_entropy_is_torchs(weight, pos_weight, reduction):
    u, y = (3 * torch.randn(6, K)).requires_grad_(), torch.rand(6, K)
    ours = BinaryCrossEntropy(weight=weight, pos_weight=pos_weight, reduction=reduction)
    theirs = nn.BCEWithLogitsLoss(weight=weight, pos_weight=pos_weight, reduction=reduction)
    outputs = K if reduction == "mean" else 1
    assert_same(lambda u: ours(u, y), lambda u: outputs * theirs(u, y), u)
    for labels in (y > 0.5, (y > 0.5).long()):
        torch.testing.assert_close(ours(u, labels), outputs * theirs(u, labels.to(u)), **CLOSE)


@pytest.mark.parametrize("shape", [(6,), (6, K), (6, 2, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_regression_losses_are_torchs(shape, reduction):
    u, y = (2 * torch.randn(shape)).requires_grad_(), torch.randn(shape)
    outputs = u[0].numel() if reduction == "mean" else 1
    for ours, theirs in (
        (SquaredError(reduction=reduction), nn.MSELoss(reduction=reduction)),
        (Huber(reduction=reduction), nn.HuberLoss(reduction=reduction)),
        (Huber(0.3, reduction=reduction), nn.HuberLoss(reduction=reduction, delta=0.3)),
    ):
        assert_same(lambda u: ours(u, y), lambda u: outputs * theirs(u, y), u)


@pytest.mark.parametrize("case", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_loss_computes_half_precision_scores_in_float32(case, dtype):
    """Scores of a network under autocast, or of a half-precision one; torch autocasts its own losses to float32."""
    torch.manual_seed(0)
    u, target = torch.randn(6, K).to(dtype).requires_grad_(), case.target(6)
    loss = case.loss().float()
    wide = u.detach().float().requires_grad_()
    expected = loss(case.scores(wide), target)
    (gradient,) = torch.autograd.grad(expected, wide)
    for autocast in (False, True):
        scores = case.scores(u)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(scores, target)
        assert value.dtype == torch.float32
        same = 1e-6 if case.scores is LossCase.scores else 1e-2  # where the case itself computes in half precision
        torch.testing.assert_close(value, expected, rtol=same, atol=1e-6)
        (found,) = torch.autograd.grad(value, u)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), gradient, rtol=0.05, atol=0.02)


@each_smooth_loss
def test_the_hull_lifts_every_atom_to_its_own_offset(case):
    """c = −ℓ*(s): Fenchel's equality at the atom, his inequality everywhere else."""
    torch.manual_seed(0)
    loss, target = case.loss(), case.target(6)
    v, _ = expanded(loss, case.scores(2 * torch.randn(6, K)), target)
    u, target = expanded(loss, case.scores(2 * torch.randn(6, K)), target)
    hull = loss.hull(u, target)
    if hull is None:
        return
    atom = loss.oracle(u, target)
    torch.testing.assert_close(hull.lift(atom.s), atom.offset)
    torch.testing.assert_close(atom.b(u), atom.value)
    other = loss.oracle(v, target)
    middle = like(u, tuple((a + b) / 2 for a, b in zip(parts(atom.s), parts(other.s), strict=True)))
    assert (hull.lift(middle) >= (atom.offset + other.offset) / 2 - 1e-12).all()
    assert (inner(middle, u) + hull.lift(middle) <= atom.value + 1e-12).all()


@given(seed=st.integers(0, 1000), smoothing=st.sampled_from([0.05, 0.5, 1.0]))
def test_the_lower_bound_is_reached_and_never_passed(seed, smoothing):
    torch.manual_seed(seed)
    u, y, t = 3 * torch.randn(5, K), torch.randint(K, (5,)), torch.randn(5, K).softmax(1)
    weight = class_weights()
    for loss, target in (
        (CrossEntropy(label_smoothing=smoothing, reduction="none"), y),
        (CrossEntropy(label_smoothing=smoothing, weight=weight, reduction="none"), y),
        (CrossEntropy(reduction="none"), t),
        (CrossEntropy(weight=weight, label_smoothing=smoothing, reduction="none"), t),
    ):
        bound, q = loss.lower_bound(u, target), loss.hull(u, target).q
        assert (loss(u, target) >= bound - 1e-12).all()
        assert (bound > 0).all()
        torch.testing.assert_close(loss(q.log(), target), bound)  # softmax(log q) = q/m
    bce = BinaryCrossEntropy(pos_weight=weight, reduction="none")
    bound = bce.lower_bound(u, t)
    assert (bce(u, t) >= bound - 1e-12).all()
    torch.testing.assert_close(bce((weight * t / (1 - t)).log(), t), bound)
    assert CrossEntropy().lower_bound(u, y) is None
    assert not bce.lower_bound(u, (t > 0.5).to(u)).any()


def test_infinite_soft_targets_and_masks_are_torchs():
    u = torch.tensor([[0.0, 1.0, -torch.inf]])
    assert CrossEntropy()(u, torch.tensor([[0.5, 0.5, 0.0]])).isfinite()  # torch: NaN
    assert CrossEntropy()(u, torch.tensor([[0.5, 0.25, 0.25]])) == torch.inf
    assert CrossEntropy(label_smoothing=0.1)(u, torch.tensor([0])) == torch.inf


def test_infinite_logits_of_independent_labels_are_sure():
    """A label that is ruled out and off, or sure and on, has no loss (torch: NaN); if it is wrong, no finite one."""
    u = torch.tensor([[-torch.inf, 0.5, torch.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    each = BinaryCrossEntropy(reduction="none")
    assert F.binary_cross_entropy_with_logits(u.detach()[:1, :1], torch.zeros(1, 1)).isnan()
    value = each(u, torch.tensor([[0, 1, 1], [0, 1, 1]]))
    torch.testing.assert_close(value[0], F.softplus(torch.tensor(-0.5)))
    (gradient,) = torch.autograd.grad(value.sum(), u)
    assert gradient.isfinite().all()
    assert not gradient[0, [0, 2]].any()
    assert not each(u, torch.tensor([[1, 1, 1], [0, 1, 1]]))[0].isfinite()
    assert not each(u, torch.tensor([[0, 1, 0], [0, 1, 1]]))[0].isfinite()
    w = torch.randn(5, 3, requires_grad=True)
    scores = (torch.randn(4, 5) @ w).masked_fill(torch.tensor([False, False, True]), -torch.inf)
    problem = ProxProblem.from_scores(BinaryCrossEntropy(), scores, torch.tensor([[0, 1, 0]] * 4), [w], lr=0.5)
    for solver in (SingleStepFW(), MultiStepFW(20), CorrectiveFW(20)):
        assert verify(problem, solver).ok
        assert not problem.displacement(solver.solve(problem))[0][:, 2].any()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lr", [0.0625, 8.0], ids=["capped", "by the loss"])
def test_training_without_decay_and_momentum_is_alig(lr, fused):
    """Bit for bit where η caps the step; elsewhere our step is loss / ‖g‖² to 1e-14.

    This ALI-G takes min(η, loss / (‖g‖² + 1e-6)), and adds up ‖g‖² in float32: that is told here to its last digits. η
    is a power of two, so that η·g is exact, and w − η·g the same with a fused multiply-add and without.
    """
    AliG = pytest.importorskip("pytorch_optimizer").AliG
    if fused:
        pytest.importorskip("numba")
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, K))
    theirs, x, y = copy.deepcopy(ours), torch.randn(20, 5), torch.randint(K, (20,))
    criterion = CrossEntropy()
    optimizer = ProxOptimizer(criterion, SingleStepFW(), ours.parameters(), lr=lr, momentum=0.0, fused=fused)
    peer, capped = AliG(theirs.parameters(), max_lr=lr), 0
    for _ in range(20):
        theirs.load_state_dict(ours.state_dict())
        before = vector(ours)
        optimizer.zero_grad()
        criterion(ours(x), y).backward()
        optimizer.step()
        peer.zero_grad()
        value = criterion(theirs(x), y)
        value.backward()
        peer.step(lambda value=value: float(value.detach()))
        squared = sum(float(p.grad.square().sum()) for p in theirs.parameters())
        step = peer.param_groups[0]["step_size"]
        after = [vector(net) for net in (ours, theirs)]
        if step == lr:
            capped += 1
            assert lr * float(optimizer.last.gamma) == step
            assert torch.equal(*after)
        else:
            exact = float(value.detach()) / squared
            assert lr * float(optimizer.last.gamma) == pytest.approx(exact, rel=1e-14)
            assert step == pytest.approx(float(value.detach()) / (squared + 1e-6), rel=2e-7)
            torch.testing.assert_close(after[0] - before, (after[1] - before) * (exact / step), rtol=1e-12, atol=1e-15)
    assert capped == 20 if lr < 1 else capped < 20
