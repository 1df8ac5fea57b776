"""What docs/extend.md promises of a structure of one's own; the page itself runs in test_pages.py."""

import pytest
import torch

from proxsvm import ProxProblem
from proxsvm.losses import Atom, StructuredHinge
from proxsvm.solvers import MultiStepFW
from proxsvm.verification import check_loss, verify
from tests.cases import TwoBits


class Wrong(TwoBits):
    """Its decoder is wrong: always [1, 1]."""

    def decode(self, scores, target=None):
        return torch.ones_like(super().decode(scores, target))


def drawn():
    return (torch.randn(6, 2), torch.randn(6, 2)), torch.randint(2, (6, 2))


def test_enumeration_finds_a_wrong_decoder():
    with pytest.raises(AssertionError, match=r"not the best atom|is negative"):
        check_loss(Wrong(), *drawn())


class Approximate(Wrong):
    """Says that its decoder is approximate, and it is."""

    exact = False


class Dearer(Approximate):
    """Its atoms are none of the loss, and above all of them."""

    def oracle(self, scores, target):
        s, c = super().oracle(scores, target)
        return Atom(s, c + 9)


def test_an_approximate_decoder_is_held_to_what_it_promises():
    """It may miss the best labelling, but what it returns is one, so that the value is a lower bound."""
    check_loss(Approximate(), *drawn())
    with pytest.raises(AssertionError, match="better than all atoms of its hull"):
        check_loss(Dearer(), *drawn())


def test_no_step_of_an_approximate_decoder_is_certified():
    torch.manual_seed(0)
    net, x, target = torch.nn.Linear(3, 4), torch.randn(6, 3), torch.randint(2, (6, 2))

    def report_of(loss):
        problem = ProxProblem.from_scores(loss, net(x).split(2, 1), target, list(net.parameters()), lr=1.0)
        return verify(problem, MultiStepFW(max_steps=200), tol=1e-2)

    report = report_of(Approximate())
    assert not report.ok  # P is below QP: the decoder does not see what is left of the loss
    assert report.relative_gap < 1e-2
    assert not report.optimal
    assert report.verdict.startswith("no certificate")
    assert report_of(TwoBits()).optimal


def test_a_structure_without_decoder_says_what_is_missing():
    class Empty(StructuredHinge):
        features = TwoBits.features
        cost = TwoBits.cost

    with pytest.raises(NotImplementedError, match="must define decode"):
        Empty()(*drawn())
