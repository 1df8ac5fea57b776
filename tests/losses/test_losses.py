"""Losses: support functions, equal to torch's where torch has them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from proxsvm import ProxProblem, losses
from proxsvm.losses import Atom, ConvexLoss, L1Regression, MultiClassHinge, QuantileRegression
from proxsvm.losses.base import detached, like, parts
from proxsvm.solvers import MultiStepFW
from proxsvm.verification import check_loss, verify
from tests.cases import LAYOUTS, LOSSES, K, TwoBits, cost_matrix, each_loss, expanded
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


def test_a_sample_where_smoothing_cannot_help_takes_the_hinges_atom():
    u = torch.tensor([[3.0, 2.5, -9.0, -9.0]], requires_grad=True)
    loss = MultiClassHinge(torch.tensor([[0.0, 0, 0, 0], [0.55, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]), smooth=True)
    soft = loss.smoothed(u.detach(), torch.tensor([0]))
    assert soft.b(u.detach()) < 0.05  # the smoothed value is tiny: the far classes weigh it down
    far = torch.tensor([[3.0, 2.5, -2.0, -2.0]], requires_grad=True)
    assert loss.smoothed(far.detach(), torch.tensor([0])).b(far.detach()) < 0
    (grad,) = torch.autograd.grad(loss(far, torch.tensor([0])), far)
    torch.testing.assert_close(grad, torch.tensor([[-1.0, 1.0, 0.0, 0.0]]))


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
    torch.testing.assert_close(second, gradient / v)  # 2 p s and 2 p s v: s is a constant


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
        return Atom(s, -s * target, scores if self.lie == "another value" else None)

    def lower_bound(self, scores, target):
        return torch.ones_like(scores) if self.lie == "a bound" else None


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("none", None),
        ("says that it is approximate", None),
        ("the opposite sign", "not the best atom"),
        ("another value", "whose value is not"),
        ("a bound", "below its own lower_bound"),
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
    torch.manual_seed(0)
    unary, pairwise = (torch.randn(shape, dtype=torch.float32) for shape in ((2, 4, 3), (3, 3)))
    for _ in range(10):
        check_loss(losses.ChainCRF(), (unary, pairwise), torch.tensor([[0, 1, 2, 1], [2, 1, -100, -100]]))
