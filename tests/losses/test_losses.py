"""Losses: support functions, equal to torch's where torch has them."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from proxsvm import ProxProblem, losses
from proxsvm._scores import inner
from proxsvm.losses import (
    Atom,
    ConvexLoss,
    CrossEntropy,
    L1Regression,
    LovaszHinge,
    MultiClassHinge,
    QuantileRegression,
)
from proxsvm.losses.base import detached, like, parts
from proxsvm.solvers import CorrectiveFW, MultiStepFW, SingleStepFW
from proxsvm.verification import check_loss, verify
from tests.cases import (
    LAYOUTS,
    LOSSES,
    K,
    LossCase,
    TwoBits,
    class_weights,
    cost_matrix,
    each_loss,
    expanded,
    reals,
    vector,
)
from tests.cases import PaperOptimizer as ProxOptimizer

seeds = st.integers(0, 10_000)
sizes = st.integers(1, 7)


@given(case=st.sampled_from(LOSSES), n=sizes, seed=seeds)
def test_every_loss_is_a_support_function(case, n, seed):
    torch.manual_seed(seed)
    check_loss(case.loss(), case.scores(3 * torch.randn(n, K)), case.target(n))


@given(case=st.sampled_from(LOSSES), n=sizes, seed=seeds)
def test_value_and_gradient_are_the_atoms(case, n, seed):
    torch.manual_seed(seed)
    loss, outputs, target = case.loss(), (3 * torch.randn(n, K)).requires_grad_(), case.target(n)
    value = loss(case.scores(outputs), target)
    scores, target = expanded(loss, case.scores(outputs), target)
    atom = loss.direction(detached(scores), target)
    p = torch.as_tensor(loss.coefficients(scores, target, None)).expand(n)
    again = (p * atom.b(scores)).sum()
    assert value.detach() == pytest.approx(float(again.detach()))
    torch.testing.assert_close(*(torch.autograd.grad(x, outputs)[0] for x in (value, again)))


@each_loss
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_memory_layout_makes_no_difference(loss, layout):
    viewed = [LAYOUTS[layout](u.detach()).requires_grad_() for u in parts(loss.scores(3 * torch.randn(3, K)))]
    plain = [u.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for u in viewed]
    target, found = loss.target(3), []
    for u in (viewed, plain):
        value = loss.loss()(tuple(u) if len(u) > 1 else u[0], target)
        found.append([value, *torch.autograd.grad(value, u)])
    torch.testing.assert_close(*found)


@given(n=sizes, seed=seeds)
def test_values_equal_torchs(n, seed):
    torch.manual_seed(seed)
    u, y, t = 3 * torch.randn(n, K), torch.randint(K, (n,)), torch.randn(n, K)
    hinge = (u - u.gather(1, y[:, None]) + 1 - F.one_hot(y, K)).max(1).values.mean()
    assert MultiClassHinge()(u, y) == pytest.approx(float(hinge))
    assert losses.TopKHinge(1)(u, y) == pytest.approx(float(hinge))
    assert losses.WestonWatkinsHinge()(u, y) == pytest.approx(K * float(nn.MultiMarginLoss()(u, y)))
    assert L1Regression()(u, t) == pytest.approx(K * float(nn.L1Loss()(u, t)))
    assert L1Regression(0.4)(u, t) == pytest.approx(float(((u - t).abs() - 0.4).clamp(min=0).sum(1).mean()))
    assert QuantileRegression(0.5)(u, t) == pytest.approx(float(L1Regression()(u, t)) / 2)
    binary = (1 - torch.where(t > 0, u, -u)).clamp(min=0).sum(1).mean()
    assert losses.MultiLabelHinge()(u, t > 0) == pytest.approx(float(binary))
    tree = losses.MultiLabelHinge([-1, 0, 0, 1], smooth=True), losses.MultiLabelHinge(smooth=True)
    assert tree[0]((u, torch.zeros(K, 2, 2)), t > 0) == pytest.approx(float(tree[1](u, t > 0)))


def test_the_cost_matrix_is_indexed_predicted_true():
    cost = cost_matrix()
    cost[3, 0] = 7.0
    u = torch.zeros(1, K)
    assert MultiClassHinge(cost)(u, torch.tensor([0])) == 7
    assert MultiClassHinge(cost)(u, torch.tensor([3])) == 3


def test_smoothing_is_the_direction_of_the_cross_entropy_and_switches_back():
    u = torch.tensor([[0.0, 0.5, -1.0, 0.2], [30.0, 29.5, -40.0, -40.0], [9.0, 0.0, 0.0, 0.0]], requires_grad=True)
    y = torch.zeros(3, dtype=torch.long)
    (grad,) = torch.autograd.grad(MultiClassHinge(smooth=True, reduction="sum")(u, y), u)
    (cross_entropy,) = torch.autograd.grad(F.cross_entropy(u, y, reduction="sum"), u)
    torch.testing.assert_close(grad[:2], cross_entropy[:2])
    assert torch.equal(grad[2], torch.zeros(K))  # margins are met: the hinge's own atom is 0


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 3)])
def test_regression_takes_any_output_shape(shape):
    u, t = torch.randn(shape), torch.randn(shape)
    torch.testing.assert_close(L1Regression()(u, t), (u - t).abs().reshape(5, -1).sum(1).mean())


def test_several_quantiles_share_one_target_and_a_minimiser_is_the_quantile():
    u, t = torch.randn(6, 3), torch.randn(6)
    levels = [0.1, 0.5, 0.9]
    one_by_one = sum(QuantileRegression(tau)(u[:, j], t) for j, tau in enumerate(levels))
    torch.testing.assert_close(QuantileRegression(levels)(u, t), one_by_one)
    t = torch.arange(101.0)
    grid = torch.linspace(0, 100, 1001)
    best = min(grid, key=lambda q: float(QuantileRegression(0.9)(q.expand(101), t)))
    assert best == pytest.approx(90, abs=0.2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_class_indices_of_any_integer_type(dtype):
    u = torch.randn(3, K)
    y = torch.tensor([0, 2, 3])
    torch.testing.assert_close(MultiClassHinge()(u, y.to(dtype)), MultiClassHinge()(u, y))


def test_a_loss_moves_with_its_module():
    loss = MultiClassHinge(cost_matrix()).to(torch.float32)
    assert loss.cost.dtype == torch.float32
    assert "cost" in loss.state_dict()
    assert "smooth=True" in repr(MultiClassHinge(smooth=True))


@pytest.mark.parametrize("loss", [MultiClassHinge(), MultiClassHinge(smooth=True), MultiClassHinge(torch.zeros(1, 1))])
def test_a_single_class_has_no_rival(loss):
    u = torch.randn(3, 1, requires_grad=True)
    value = loss(u, torch.zeros(3, dtype=torch.long))
    value.backward()
    assert value == 0
    assert not u.grad.any()


@pytest.mark.parametrize("smooth", [False, True])
def test_the_gradient_by_a_function_transform_and_with_a_graph(smooth):
    loss, u, y = MultiClassHinge(smooth=smooth), torch.randn(5, K) / 3, torch.randint(K, (5,))
    v = u.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(v, y), v, create_graph=True)
    torch.testing.assert_close(torch.func.grad(lambda v: loss(v, y))(u), gradient)
    v = u.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(v * v, y), v, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), v)
    if smooth:  # the second derivative of the cross-entropy
        (expected,) = torch.autograd.grad(F.cross_entropy(v * v, y), v, create_graph=True)
        (expected,) = torch.autograd.grad(expected.sum(), v)
    else:  # 2 p s and 2 p s v: s is a constant
        expected = gradient / v
    torch.testing.assert_close(second, expected)


def test_a_subclass_may_have_another_oracle():
    for kind, scores, target in (
        (MultiClassHinge, torch.randn(5, K), torch.randint(K, (5,))),
        (losses.CrossEntropy, torch.randn(5, K), torch.randint(K, (5,))),
        (losses.ChainHinge, (torch.randn(5, 3, K), torch.randn(K, K)), torch.randint(K, (5, 3))),
    ):

        class Twice(kind):
            def oracle(self, scores, target):
                atom = super().oracle(scores, target)
                return Atom(like(atom.s, tuple(2 * s for s in parts(atom.s))), 2 * atom.offset)

        torch.testing.assert_close(Twice()(scores, target), 2 * kind()(scores, target))


class Wrong(ConvexLoss):
    """|u − y| by a wrong story, ``lie``."""

    def __init__(self, lie):
        super().__init__()
        self.lie, self.exact = lie, lie != "says that it is approximate"

    def oracle(self, scores, target):
        s = (scores - target).sign()
        if self.lie in ("the opposite sign", "says that it is approximate"):
            s = torch.where((scores - target).abs() > 0.5, s, torch.zeros_like(s))
        if self.lie == "a tuple":
            return s, -s * target
        if self.lie == "another dtype":
            s = s.float()
        if self.lie == "another shape":
            s = s[:, None]
        if self.lie == "below zero":
            return Atom(0 * s, -torch.ones_like(s))
        if self.lie == "no offset":
            return Atom(s, 0.0)
        value = {
            "another value": scores,
            "one value": scores[:1],
            "values as a column": (scores - target).abs()[:, None],
        }
        return Atom(s, -s * target, value.get(self.lie))

    def lower_bound(self, scores, target):
        return {"a bound": torch.ones_like(scores), "one bound": torch.zeros(())}.get(self.lie)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("none", None),
        ("says that it is approximate", None),
        ("the opposite sign", "not the best atom"),
        ("another value", "whose value is not"),
        ("one value", r"returned a value of shape \(1,\); expected one per sample, \(6,\)"),
        ("values as a column", r"returned a value of shape \(6, 1\)"),
        ("no offset", "returned an offset of type float"),
        ("a bound", "below its own lower_bound"),
        ("one bound", r"lower_bound returned shape \(\); expected one per sample, \(6,\)"),
        ("below zero", "is negative"),
        ("a tuple", r"returned a tuple; expected an Atom: return Atom\(s, offset\)"),
        ("another dtype", r"s of torch.float32; expected that of the scores, torch.float64"),
        ("another shape", r"returned s of shape \[\(6, 1\)\]"),
    ],
)
def test_check_loss_finds_every_lie(lie, message):
    torch.manual_seed(0)
    u, y = torch.randn(6), torch.randn(6)
    if message is None:
        return check_loss(Wrong(lie), u, y)
    with pytest.raises((AssertionError, TypeError, ValueError), match=message):
        check_loss(Wrong(lie), u, y)


@pytest.mark.parametrize("dtype", [torch.long, torch.float64])
def test_offsets_of_any_dtype_are_those_of_the_scores(dtype):
    class Far(ConvexLoss):
        """max(0, 1 - y·u), with the offset that a comparison gives."""

        def oracle(self, scores, target):
            active = target * scores < 1
            return Atom(-target * active, active.to(dtype))

    w = torch.randn(6, dtype=torch.float32, requires_grad=True)
    target = torch.tensor([1.0, -1.0] * 3, dtype=torch.float32)
    assert Far()(w, target, torch.ones(6)).dtype == torch.float32
    problem = ProxProblem.from_scores(Far(), w * 1, target, [w], lr=3.0)
    for solver in (SingleStepFW(), MultiStepFW(5), CorrectiveFW(5)):
        assert verify(problem, solver, tol=1e-4).ok


def test_check_loss_names_what_is_wrong_with_a_labelling():
    class Taxed(TwoBits):
        def cost(self, labelling, target):
            return 1 + super().cost(labelling, target)

    class Short(TwoBits):
        def features(self, labelling, scores):
            return tuple(x[:, :1] for x in super().features(labelling, scores))

    scores, target = (torch.randn(2, 2), torch.randn(2, 2)), torch.zeros(2, 2, dtype=torch.long)
    check_loss(TwoBits(), scores, target)
    with pytest.raises(AssertionError, match=r"Taxed.cost\(y, y\) is \[1, 1\]; expected 0"):
        check_loss(Taxed(), scores, target)
    with pytest.raises(ValueError, match=r"Short.features returned shapes \[\(2, 1\), \(2, 1\)\]"):
        check_loss(Short(), scores, target)


def test_verify_reports_no_gap_below_zero_by_rounding():
    class Rounded(ProxProblem):
        def gap(self, point):
            return super().gap(point) - 1e-15

    w, x = torch.zeros(2, 1, requires_grad=True), torch.ones(1, 1)
    problem = Rounded.from_scores(MultiClassHinge(), x @ w.T, torch.tensor([0]), [w], lr=1.0)
    report = verify(problem, MultiStepFW(3))
    assert report.gap == 0
    assert report.exact_gap >= 0
    assert "-" not in str(report).split("gap     P − D")[1].split("\n")[0].replace("e-", "")


@pytest.mark.parametrize("criterion", [MultiClassHinge(), L1Regression(), losses.CrossEntropy(label_smoothing=0.1)])
def test_scores_and_targets_that_were_changed_after_the_loss_saw_them_are_refused(criterion):
    model, x, y = nn.Linear(5, K), torch.randn(6, 5), torch.randint(K, (6,))
    target = torch.randn(6, K) if isinstance(criterion, L1Regression) else y
    optimizer = ProxOptimizer(criterion, MultiStepFW(3), model.parameters(), lr=0.5)

    def closure(change):
        scores = 2 * model(x)
        value = criterion(scores, target)
        with torch.no_grad():
            change(scores)
        return value

    optimizer.step(lambda: closure(lambda scores: scores.softmax(1)))
    with pytest.raises(RuntimeError, match="changed in place after the loss was computed"):
        optimizer.step(lambda: closure(lambda scores: scores[0].zero_()))
    with pytest.raises(RuntimeError, match="changed in place after the loss was computed"):
        optimizer.step(lambda: closure(lambda _: target.fill_(0)))  # a buffer that the next batch is read into


def test_the_quantiles_of_a_float64_model_are_exact():
    u, y = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)
    assert float(QuantileRegression(0.1).to(torch.float32)(u, y)) == pytest.approx(0.2, rel=1e-15)
    assert float(QuantileRegression([0.1, 0.7])(u, y)) == pytest.approx(0.8, rel=1e-15)
    assert "tau=[0.1, 0.7]" in repr(QuantileRegression([0.1, 0.7]))


SINGLE = losses.SquaredError(), losses.Huber(), losses.BinaryCrossEntropy(), L1Regression(), QuantileRegression(0.3)


@pytest.mark.parametrize("loss", SINGLE, ids=repr)
@pytest.mark.parametrize("outputs", [1, 50])
def test_check_loss_allows_the_rounding_of_single_precision(loss, outputs):
    for _ in range(5):
        check_loss(loss, torch.randn(16, outputs, dtype=torch.float32), torch.rand(16, outputs, dtype=torch.float32))


def test_check_loss_allows_the_rounding_of_a_recursion_in_single_precision():
    unary, pairwise = (torch.randn(shape, dtype=torch.float32) for shape in ((2, 4, 3), (3, 3)))
    for _ in range(10):
        check_loss(losses.ChainCRF(), (unary, pairwise), torch.tensor([[0, 1, 2, 1], [2, 1, -100, -100]]))


# Scores far from zero: ⟨s, u⟩ and c cancel there, and the value of a float32 loss must not lose its digits to that.

N, FAR = 24, 1e4


def drawn(case) -> tuple[Any, Any]:
    """Small differences, in each row far from zero in its own way; targets of a regression lie near their scores."""
    first, *others = (u.float() for u in parts(case.scores(torch.randn(N, K))))
    first = (first + FAR * torch.randn(*first.shape[:-1], 1)).float()
    scores, target = like(case.scores(torch.zeros(N, K)), (first, *others)), case.target(N)
    return scores, (first + target).float() if case.target is reals else target


def double(x: Any) -> Any:
    return like(x, tuple(u.double() if u.is_floating_point() else u for u in parts(x)))


@each_loss
@pytest.mark.parametrize("seed", range(3))
def test_the_value_of_float32_scores_is_that_of_float64(loss, seed):
    torch.manual_seed(seed)
    scores, target = drawn(loss)
    criterion = loss.loss().float()
    exact = float(loss.loss()(double(scores), double(target)))
    for value in (criterion(scores, target), ConvexLoss.forward(criterion, scores, target)):
        assert value.dtype == torch.float32
        assert float(value) == pytest.approx(exact, rel=1e-6)


@each_loss
def test_a_problem_knows_its_first_dual_as_exactly(loss):
    scores, target = drawn(loss)
    w = tuple(u.clone().requires_grad_() for u in parts(scores))
    exact, criterion = float(loss.loss()(double(scores), double(target))), loss.loss().float()
    problem = ProxProblem.from_scores(criterion, like(scores, w), target, list(w), lr=0.1)
    assert float(problem.first().lam) == pytest.approx(exact, rel=1e-6)
    if not criterion.smooth:
        assert float(problem.primal(problem.start())) == pytest.approx(exact, rel=1e-6)


# The smooth losses: torch's values and gradients to the last digits, and a dual that certifies their steps.

SMOOTH = [case for case in LOSSES if isinstance(case.loss(), losses.SmoothLoss)]
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
    ours = losses.BinaryCrossEntropy(weight=weight, pos_weight=pos_weight, reduction=reduction)
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
        (losses.SquaredError(reduction=reduction), nn.MSELoss(reduction=reduction)),
        (losses.Huber(reduction=reduction), nn.HuberLoss(reduction=reduction)),
        (losses.Huber(0.3, reduction=reduction), nn.HuberLoss(reduction=reduction, delta=0.3)),
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
    bce = losses.BinaryCrossEntropy(pos_weight=weight, reduction="none")
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
    each = losses.BinaryCrossEntropy(reduction="none")
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
    problem = ProxProblem.from_scores(losses.BinaryCrossEntropy(), scores, torch.tensor([[0, 1, 0]] * 4), [w], lr=0.5)
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


# The Lovász and the average-precision hinge against their definitions over all orders of the pixels, or items.


def jaccard_loss(wrong: set[int], y: Tensor) -> float:
    """1 − IoU of the labelling that is wrong at exactly these pixels; 0 where both masks are empty."""
    truth = {i for i in range(len(y)) if y[i] == 1}
    predicted = truth ^ wrong
    return 1 - len(truth & predicted) / len(truth | predicted) if truth | predicted else 0.0


def lovasz(order: Sequence[int], u: Tensor, y: Tensor) -> float:
    """The errors in this order, each times what its pixel adds to the Jaccard loss."""
    error = (1 - (2 * y - 1) * u).clamp(min=0)
    losses = [jaccard_loss({*order[:k]}, y) for k in range(len(order) + 1)]
    return sum(
        float(error[i]) * (after - before) for i, (before, after) in zip(order, itertools.pairwise(losses), strict=True)
    )


def average_precision(ranking: Sequence[int], y: Tensor) -> float:
    """The mean, over the relevant items, of the precision of the list down to that item."""
    hits, precisions = 0, []
    for position, item in enumerate(ranking, 1):
        if y[item]:
            hits += 1
            precisions.append(hits / position)
    return sum(precisions) / len(precisions)


def ranking_score(ranking: Sequence[int], u: Tensor, y: Tensor) -> float:
    """(1/|P||N|) Σ ± (u_i − u_j), + where the positive i is ranked above the negative j."""
    at = {item: position for position, item in enumerate(ranking)}
    positives, negatives = (y == 1).nonzero()[:, 0].tolist(), (y == 0).nonzero()[:, 0].tolist()
    total = sum((1 if at[i] < at[j] else -1) * float(u[i] - u[j]) for i in positives for j in negatives)
    return total / (len(positives) * len(negatives))


def ranking(order: Sequence[int], u: Tensor, y: Tensor) -> float:
    """1 − AP, and how much higher its score is than the truth's; 0 where there is nothing to rank."""
    if not 0 < y.sum() < len(y):
        return 0.0
    truth = y.argsort(descending=True).tolist()
    return 1 - average_precision(order, y) + ranking_score(order, u, y) - ranking_score(truth, u, y)


@pytest.mark.parametrize(("kind", "value_of"), [(LovaszHinge, lovasz), (losses.AveragePrecisionHinge, ranking)])
@settings(max_examples=150)
@given(m=st.integers(1, 5), seed=st.integers(0, 10**6), ties=st.booleans(), ignored=st.booleans())
def test_it_is_the_largest_over_all_orders(kind, value_of, m, seed, ties, ignored):
    torch.manual_seed(seed)
    u = torch.randint(-2, 3, (4, m)).double() if ties else torch.randn(4, m)
    y = torch.randint(2, (4, m))
    if ignored:
        y = y.masked_fill(torch.rand(4, m) < 0.3, -100)
    value = kind(reduction="none")(u.masked_fill(y == -100, torch.nan), y)
    for i in range(4):
        kept = y[i] >= 0
        orders = itertools.permutations(range(int(kept.sum())))
        assert value[i] == pytest.approx(max(value_of(order, u[i, kept], y[i, kept]) for order in orders), abs=1e-12)


def test_a_batch_may_be_one_sample():
    u, y = torch.randn(3, 4, 5), torch.randint(2, (3, 4, 5))
    each = LovaszHinge(reduction="none")(u, y)
    torch.testing.assert_close(LovaszHinge()(u, y), each.mean())
    torch.testing.assert_close(LovaszHinge(per_image=False)(u, y), LovaszHinge()(u.reshape(1, -1), y.reshape(1, -1)))
    torch.testing.assert_close(LovaszHinge(ignore_index=7)(u, y.clone().fill_(7)), torch.tensor(0.0))


@pytest.mark.parametrize("rare", [0.5, 1e-3])
def test_the_increments_of_a_large_image_do_not_cancel_in_float32(rare):
    """Differences of Δ would: their relative error was 0.5 % at this size, and 31 % at 16 million pixels."""
    u, y = torch.randn(1, 2**18).float(), (torch.rand(1, 2**18) < rare).long()
    found, exact = (LovaszHinge().oracle(v, y).s for v in (u, u.double()))
    assert (found - exact).abs().sum() <= 1e-5 * exact.abs().sum()  # errors that tie in float32 may be swapped
