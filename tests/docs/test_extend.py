"""What docs/extend.md promises of a structure of one's own; the page itself runs in test_pages.py."""

import pytest
import torch

from proxsvm import ProxProblem
from proxsvm.losses import Atom, StructuredHinge
from proxsvm.solvers import MultiStepFW
from proxsvm.verification import check_loss, verify


class Pair(StructuredHinge):
    """Two bits, as scores [n, 2]; ``wrong`` makes the decoder wrong on purpose."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def features(self, labelling, scores):
        return labelling.to(scores)

    def cost(self, labelling, target):
        return (labelling != target).sum(1)

    def labellings(self, scores, target):
        return [torch.tensor(bits).expand(len(scores), 2) for bits in ([0, 0], [0, 1], [1, 0], [1, 1])]

    def decode(self, scores, target=None):
        best = super().decode(scores, target)
        return torch.ones_like(best) if self.wrong else best


def test_enumeration_finds_a_wrong_decoder():
    scores, target = torch.randn(6, 2), torch.randint(2, (6, 2))
    check_loss(Pair(), scores, target)
    with pytest.raises(AssertionError, match=r"not the best atom|is negative"):
        check_loss(Pair(wrong=True), scores, target)


class Approximate(Pair):
    """Says that its decoder is approximate, and it is: always [1, 1]."""

    exact = False

    def __init__(self) -> None:
        super().__init__(wrong=True)


class Dearer(Approximate):
    """Its atoms are none of the loss, and above all of them."""

    def oracle(self, scores, target):
        s, c = super().oracle(scores, target)
        return Atom(s, c + 9)


def test_an_approximate_decoder_is_held_to_what_it_promises():
    """It may miss the best labelling, but what it returns is one, so that the value is a lower bound."""
    scores, target = torch.randn(6, 2), torch.randint(2, (6, 2))
    check_loss(Approximate(), scores, target)
    with pytest.raises(AssertionError, match="better than all atoms of its hull"):
        check_loss(Dearer(), scores, target)


def test_no_step_of_an_approximate_decoder_is_certified():
    torch.manual_seed(0)
    net, x, target = torch.nn.Linear(3, 2), torch.randn(6, 3), torch.randint(2, (6, 2))
    problem = ProxProblem.from_scores(Approximate(), net(x), target, list(net.parameters()), lr=1.0)
    report = verify(problem, MultiStepFW(max_steps=200), tol=1e-2)
    assert not report.ok  # P is below QP: the decoder does not see what is left of the loss
    assert report.relative_gap < 1e-2
    assert not report.optimal
    assert report.verdict.startswith("no certificate")
    exact = ProxProblem.from_scores(Pair(), net(x), target, list(net.parameters()), lr=1.0)
    assert verify(exact, MultiStepFW(max_steps=200), tol=1e-2).optimal


def test_a_structure_without_decoder_says_what_is_missing():
    class Empty(StructuredHinge):
        features = Pair.features
        cost = Pair.cost

    with pytest.raises(NotImplementedError, match="must define decode"):
        Empty()(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.long))
