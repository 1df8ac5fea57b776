"""The paper's networks have their published sizes, and train through ProxOptimizer."""

from __future__ import annotations

import pytest
import torch

from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW

SIZES = [
    (lambda: WideResNet(40, 4), 8.9e6),
    (lambda: DenseNet(40, 40), 1.9e6),
    (lambda: SentencePairBiLSTM(300, 2048, 512), 47e6),
]


@pytest.mark.parametrize(("build", "published"), SIZES)
def test_published_sizes(build, published):
    with torch.device("meta"):
        size = sum(p.numel() for p in build().parameters())
    assert size == pytest.approx(published, rel=0.01)


def images():
    return (torch.randn(4, 3, 32, 32),)


def sentences():
    return torch.randn(4, 6, 5), torch.tensor([6, 3, 1, 2]), torch.randn(4, 5, 5), torch.tensor([2, 5, 4, 1])


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda: WideResNet(10, 1), images),
        (lambda: DenseNet(10, 4), images),
        (lambda: SentencePairBiLSTM(5, 4, 3), sentences),
    ],
)
@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(3)], ids=repr)
def test_small_members_train(build, inputs, solver):
    model, x, y = build(), inputs(), torch.tensor([0, 1, 2, 0])
    criterion = MultiClassHinge(smooth=True)
    optimizer = ProxOptimizer(criterion, solver, model.parameters(), lr=0.1)
    values = [float(optimizer.step(lambda: criterion(model(*x), y)).detach()) for _ in range(20)]
    assert values[-1] < values[0]


def test_padding_does_not_change_an_encoding():
    model = SentencePairBiLSTM(5, 4, 3)
    words = torch.randn(2, 3, 5)
    padded = torch.cat([words, torch.randn(2, 4, 5)], 1)
    lengths = torch.tensor([3, 2])
    torch.testing.assert_close(model.encode(words, lengths), model.encode(padded, lengths))


@pytest.mark.parametrize("network", [WideResNet, DenseNet])
def test_an_impossible_depth_is_refused(network):
    with pytest.raises(ValueError, match="expected 6n"):
        network(12, 4)
