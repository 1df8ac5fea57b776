"""The losses, models and solvers of the suite, listed once, in float64. A new one is one line here.

Every test that holds for all of them runs over the product, with no exceptions by name.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from proxsvm import ProxOptimizer, ProxProblem, losses
from proxsvm.losses import Atom, ConvexLoss
from proxsvm.metrics import Diagonal, Euclidean, FixedMetric, Kronecker, Metric
from proxsvm.solvers import BlockFW, CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW

K = 4  # outputs of every model


class PaperOptimizer(ProxOptimizer):
    """The paper's optimizer, which the tests vary: no memory, no average, the Euclidean metric, η = 0.1."""

    def __init__(self, loss: ConvexLoss, solver: DualSolver, params: Any, lr: Any = 0.1, *args: Any, **options: Any):
        options = {"memory": 0.0, "average": None, **options}
        if options.get("metric") is None:
            options["metric"] = Euclidean()
        super().__init__(loss, solver, params, lr, *args, **options)


@dataclass(frozen=True)
class LossCase:
    """A loss, and how to draw a target for n samples of ``[n, K]`` outputs; ``scores`` shapes them for the loss."""

    name: str
    loss: Callable[[], ConvexLoss]
    target: Callable[[int], Any]
    scores: Callable[[Tensor], Any] = lambda outputs: outputs

    def __repr__(self) -> str:
        return self.name


class TwoBits(losses.StructuredHinge):
    """A tiny structure that can be listed: two bits, each with a score, and a score for their agreement, twice."""

    def features(self, labelling: Tensor, scores: Any) -> tuple[Tensor, Tensor]:
        unary, pairwise = scores
        agree = labelling[:, :1] == labelling[:, 1:]
        return labelling.to(unary), torch.cat([agree, ~agree], 1).to(pairwise)

    def cost(self, labelling: Tensor, target: Tensor) -> Tensor:
        return (labelling != target).sum(1)

    def labellings(self, scores: Any, target: Any) -> list[Tensor]:
        n = len(scores[0])
        return [torch.tensor(bits).expand(n, 2) for bits in ([0, 0], [0, 1], [1, 0], [1, 1])]


class OracleOnly(ConvexLoss):
    """A loss that keeps its hull to itself."""

    def __init__(self, inner: ConvexLoss) -> None:
        super().__init__(reduction=inner.reduction)
        self.inner = inner
        self.prepare, self.oracle, self.weights = inner.prepare, inner.oracle, inner.weights


class BinaryHinge(losses.PiecewiseLinearLoss):
    """A user's loss: an oracle and nothing else, Σ_j max(0, 1 − y_j u_j)."""

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        active = (target * scores < 1).to(scores)
        return Atom(-target.to(scores) * active, active.sum(1))


class Raised(ConvexLoss):
    """2 + Σ_j |u_j − y_j|, by its oracle alone: a loss that knows a lower bound."""

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        far = scores - target.to(scores)
        return Atom(far.sign(), 2 - (far.sign() * target.to(scores)).sum(1), 2 + far.abs().sum(1))

    def lower_bound(self, scores: Tensor, target: Tensor) -> Tensor:
        return torch.full_like(scores[:, 0], 2.0)


class Coupled(FixedMetric):
    """A user's metric, not diagonal: M = 1 + 3A with A the mean over a parameter; M⁻¹ = 1 − ¾A, M^(−½) = 1 − ½A."""

    def solve(self, x: Any) -> list[Tensor]:
        return [y - 0.75 * y.mean() for y in x]

    def times(self, x: Any) -> list[Tensor]:
        return [y + 3 * y.mean() for y in x]

    def root(self, rows: Tensor, shapes: Any) -> Tensor:
        pieces = torch.split(rows, [shape.numel() for shape in shapes], 1)
        return torch.cat([piece - 0.5 * piece.mean(1, keepdim=True) for piece in pieces], 1)


def classes(n: int) -> Tensor:
    return torch.randint(K, (n,))


def reals(n: int) -> Tensor:
    return torch.randn(n, K)


def cost_matrix() -> Tensor:
    k = torch.arange(float(K))
    return (k[:, None] - k[None, :]).abs()


def class_weights() -> Tensor:
    return torch.tensor([1.0, 0.5, 2.0, 0.25])


def two_bit_scores(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[:, :2], outputs[:, 2:4]


def chain_scores(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.view(-1, 2, 2), outputs.view(-1, 1, 2, 2) / 2


def tree_scores(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A star of three nodes with two labels."""
    unary = torch.stack([outputs[:, :2], outputs[:, 2:], outputs[:, 1:3]], 1)
    return unary, outputs.view(-1, 1, 2, 2).expand(-1, 3, 2, 2) / 2


def tree_target(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(2, (n, 3)), torch.tensor([[-1, 0, 0]]).expand(n, 3)


def grid_scores(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2 × 2 pixels, with weights that stay positive whatever noise a test adds."""
    unary = outputs.view(-1, 2, 2)
    return unary, 100 + 0 * unary[:, :, :1], 100 + 0 * unary[:, :1]


def bits(n: int) -> Tensor:
    return torch.randint(2, (n, K))


LOSSES = [
    LossCase("hinge", losses.MultiClassHinge, classes),
    LossCase("hinge-smooth", lambda: losses.MultiClassHinge(smooth=True), classes),
    LossCase("hinge-cost", lambda: losses.MultiClassHinge(cost_matrix()), classes),
    LossCase("hinge-cost-smooth", lambda: losses.MultiClassHinge(cost_matrix(), smooth=True), classes),
    LossCase("hinge-sum", lambda: losses.MultiClassHinge(reduction="sum"), classes),
    LossCase("top-2", lambda: losses.TopKHinge(2), classes),
    LossCase("weston-watkins", losses.WestonWatkinsHinge, classes),
    LossCase("l1", losses.L1Regression, reals),
    LossCase("l1-band", lambda: losses.L1Regression(epsilon=0.3), reals),
    LossCase("quantile", lambda: losses.QuantileRegression(0.8), reals),
    LossCase("quantiles", lambda: losses.QuantileRegression([0.1, 0.3, 0.6, 0.9]), lambda n: torch.randn(n)),
    LossCase("structured", TwoBits, lambda n: torch.randint(2, (n, 2)), two_bit_scores),
    LossCase("chain", losses.ChainHinge, lambda n: torch.randint(2, (n, 2)), chain_scores),
    LossCase("chain-smooth", lambda: losses.ChainHinge(smooth=True), lambda n: torch.randint(2, (n, 2)), chain_scores),
    LossCase("tree", losses.TreeHinge, tree_target, tree_scores),
    LossCase("chain-crf", losses.ChainCRF, lambda n: torch.randint(2, (n, 2)), chain_scores),
    LossCase("tree-crf", losses.TreeCRF, tree_target, tree_scores),
    LossCase("grid", losses.GridHinge, lambda n: torch.randint(2, (n, 2, 2)), grid_scores),
    LossCase("multi-label", lambda: losses.MultiLabelHinge(smooth=True), bits),
    LossCase("lovasz", losses.LovaszHinge, bits),
    LossCase("average-precision", losses.AveragePrecisionHinge, bits),
    LossCase("hinge-weights", lambda: losses.MultiClassHinge(weight=class_weights(), reduction="sum"), classes),
    LossCase("cross-entropy", losses.CrossEntropy, classes),
    LossCase("cross-entropy-smoothing", lambda: losses.CrossEntropy(label_smoothing=0.1), classes),
    LossCase(
        "cross-entropy-weights",
        lambda: losses.CrossEntropy(weight=class_weights(), label_smoothing=0.2, reduction="sum"),
        classes,
    ),
    LossCase("cross-entropy-soft", losses.CrossEntropy, lambda n: torch.randn(n, K).softmax(1)),
    LossCase(
        "binary-cross-entropy",
        lambda: losses.BinaryCrossEntropy(pos_weight=class_weights()),
        lambda n: torch.rand(n, K),
    ),
    LossCase("squared-error", losses.SquaredError, reals),
    LossCase("squared-error-with-band", lambda: losses.SquaredError(0.3), reals),
    LossCase("huber", lambda: losses.Huber(0.7), reals),
    LossCase("squared-hinge", losses.SquaredHinge, bits),
    LossCase("log-cosh", lambda: losses.SmoothLoss(lambda u, y: (u - y).cosh().log().sum(1)), reals),
    LossCase("oracle-only-bounded", Raised, reals),
    LossCase("oracle-only", BinaryHinge, lambda n: torch.randint(2, (n, K)) * 2.0 - 1),
]


@dataclass(frozen=True)
class ModelCase:
    """A network with K outputs, and how to draw n inputs."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]

    def __repr__(self) -> str:
        return self.name


class BiLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0].max(1).values)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.head = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return self.head(self.layer(x).mean(1))


def linear() -> nn.Module:
    return nn.Linear(5, K, bias=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, K))


def twins(count: int = 2) -> list[nn.Module]:
    """MLPs with the same weights."""
    model = mlp()
    return [model, *(copy.deepcopy(model) for _ in range(count - 1))]


def vector(model: nn.Module) -> Tensor:
    """A copy of the parameters that are in place."""
    return parameters_to_vector(model.parameters()).detach().clone()


def differentiate(optimizer: ProxOptimizer, model: nn.Module, x: Tensor, y: Any) -> Tensor:
    """The value on a batch; the gradients are its own."""
    optimizer.zero_grad()
    value = optimizer.loss(model(x), y)
    value.backward()
    return value.detach()


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.3), nn.Linear(12, K)
    )


MODELS = [
    ModelCase("linear", linear, lambda n: torch.randn(n, 5)),
    ModelCase("mlp", mlp, lambda n: torch.randn(n, 5)),
    ModelCase("conv-bn-dropout", conv, lambda n: torch.randn(n, 1, 4, 4)),
    ModelCase("bilstm", BiLSTM, lambda n: torch.randn(n, 6, 3)),
    ModelCase("transformer", Transformer, lambda n: torch.randn(n, 3, 4)),
]
SMALL_MODELS = MODELS[:3]

SOLVERS: list[DualSolver] = [
    SingleStepFW(),
    MultiStepFW(max_steps=1),
    MultiStepFW(max_steps=20, tol=0.0),
    MultiStepFW(max_steps=20, tol=0.0, fraction=0.3),
    CorrectiveFW(max_steps=20, tol=0.0),
    BlockFW(tol=1e-8, max_passes=50),
]


@dataclass
class Setting:
    """One step of training, ready to be solved: everything in float64 and in train mode."""

    loss: ConvexLoss
    model: nn.Module
    x: Tensor
    target: Any
    shape: Callable[[Tensor], Any]

    def value(self) -> Tensor:
        return self.loss(self.shape(self.model(self.x)), self.target)

    def groups(self, lr: float = 1.0, weight_decay: float = 0.0, two: bool = False) -> list[dict[str, Any]]:
        params = list(self.model.parameters())
        if not two:
            return [{"params": params, "lr": lr, "weight_decay": weight_decay}]
        half = (len(params) + 1) // 2
        return [
            {"params": params[:half], "lr": lr, "weight_decay": weight_decay},
            {"params": params[half:], "lr": 3 * lr, "weight_decay": weight_decay / 2},
        ]

    def problem(
        self, lr: float = 1.0, weight_decay: float = 0.0, two: bool = False, metric: Metric | None = None
    ) -> ProxProblem:
        groups = self.groups(lr, weight_decay, two)
        return ProxProblem.from_scores(self.loss, self.shape(self.model(self.x)), self.target, groups, metric=metric)


def setting(loss: LossCase, model: ModelCase, n: int = 5, seed: int = 0) -> Setting:
    """A seeded setting of ``loss`` on ``model``."""
    torch.manual_seed(seed)
    network = model.build().train()
    return Setting(loss.loss(), network, model.inputs(n), loss.target(n), loss.scores)


def expanded(loss: ConvexLoss, scores: Any, target: Any) -> tuple[Any, Any]:
    """Scores and target in the form that oracles and hulls take."""
    scores, target = loss.prepare(scores, target)
    return loss.expand(scores, target), target


def reversed_strides(u: Tensor) -> Tensor:
    axes = tuple(reversed(range(u.dim())))
    return u.permute(axes).contiguous().permute(axes)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": reversed_strides,
    "sliced": lambda u: torch.stack([u, torch.full_like(u, torch.nan)], -1)[..., 0],
    "expanded": lambda u: u[:1].expand_as(u),
}


def chunks(target: Any, k: int) -> list[Any]:
    """A target in k parts: a tensor, or a tuple of them."""
    if isinstance(target, tuple):
        return list(zip(*(part.chunk(k) for part in target), strict=True))
    return list(target.chunk(k))


METRICS: list[Metric] = [Euclidean(), Diagonal(beta2=0.9, eps=1e-2), Kronecker(eps=1e-2), Coupled()]

each_metric = pytest.mark.parametrize("metric", METRICS, ids=repr)
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
each_model = pytest.mark.parametrize("model", MODELS, ids=repr)
each_small_model = pytest.mark.parametrize("model", SMALL_MODELS, ids=repr)
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
