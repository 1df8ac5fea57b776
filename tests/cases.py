"""The losses, models and solvers of the suite, listed once, in float64. A new one is one line here.

Every test that holds for all of them runs over the product, with no exceptions by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxsvm import ProxProblem
from proxsvm.losses import (
    Atom,
    L1Regression,
    MultiClassHinge,
    PiecewiseLinearLoss,
    QuantileRegression,
    StructuredHinge,
    TopKHinge,
    WestonWatkinsHinge,
)
from proxsvm.solvers import BlockFW, CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW

K = 4  # outputs of every model


@dataclass(frozen=True)
class LossCase:
    """A loss, and how to draw a target for n samples of ``[n, K]`` outputs; ``scores`` shapes them for the loss."""

    name: str
    loss: Callable[[], PiecewiseLinearLoss]
    target: Callable[[int], Any]
    scores: Callable[[Tensor], Any] = lambda outputs: outputs

    def __repr__(self) -> str:
        return self.name


class TwoBits(StructuredHinge):
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


class BinaryHinge(PiecewiseLinearLoss):
    """A user's loss: an oracle and nothing else, Σ_j max(0, 1 − y_j u_j)."""

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        active = (target * scores < 1).to(scores)
        return Atom(-target.to(scores) * active, active.sum(1))


def classes(n: int) -> Tensor:
    return torch.randint(K, (n,))


def reals(n: int) -> Tensor:
    return torch.randn(n, K)


def cost_matrix() -> Tensor:
    k = torch.arange(float(K))
    return (k[:, None] - k[None, :]).abs()


def two_bit_scores(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[:, :2], outputs[:, 2:4]


LOSSES = [
    LossCase("hinge", MultiClassHinge, classes),
    LossCase("hinge-smooth", lambda: MultiClassHinge(smooth=True), classes),
    LossCase("hinge-cost", lambda: MultiClassHinge(cost_matrix()), classes),
    LossCase("hinge-cost-smooth", lambda: MultiClassHinge(cost_matrix(), smooth=True), classes),
    LossCase("hinge-sum", lambda: MultiClassHinge(reduction="sum"), classes),
    LossCase("top-2", lambda: TopKHinge(2), classes),
    LossCase("weston-watkins", WestonWatkinsHinge, classes),
    LossCase("l1", L1Regression, reals),
    LossCase("l1-band", lambda: L1Regression(epsilon=0.3), reals),
    LossCase("quantile", lambda: QuantileRegression(0.8), reals),
    LossCase("quantiles", lambda: QuantileRegression([0.1, 0.3, 0.6, 0.9]), lambda n: torch.randn(n)),
    LossCase("structured", TwoBits, lambda n: torch.randint(2, (n, 2)), two_bit_scores),
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
    BlockFW(tol=1e-8),
]


@dataclass
class Setting:
    """One step of training, ready to be solved: everything in float64 and in train mode."""

    loss: PiecewiseLinearLoss
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

    def problem(self, lr: float = 1.0, weight_decay: float = 0.0, two: bool = False) -> ProxProblem:
        return ProxProblem.from_scores(
            self.loss, self.shape(self.model(self.x)), self.target, self.groups(lr, weight_decay, two)
        )


def setting(loss: LossCase, model: ModelCase, n: int = 5, seed: int = 0) -> Setting:
    """A seeded setting of ``loss`` on ``model``."""
    torch.manual_seed(seed)
    network = model.build().train()
    return Setting(loss.loss(), network, model.inputs(n), loss.target(n), loss.scores)


each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
each_model = pytest.mark.parametrize("model", MODELS, ids=repr)
each_small_model = pytest.mark.parametrize("model", SMALL_MODELS, ids=repr)
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=repr)
