"""Grids against enumeration, both cuts; submodularity is never silently assumed."""

import importlib.util
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxsvm import ProxProblem
from proxsvm.losses import GridHinge
from proxsvm.structures import maxflow_cut, scipy_cut

CUTS = [scipy_cut]
if importlib.util.find_spec("maxflow"):
    CUTS.append(maxflow_cut)
each_cut = pytest.mark.parametrize("cut", CUTS)


def every_image(H: int, W: int) -> Tensor:
    return torch.tensor(list(itertools.product([0, 1], repeat=H * W))).view(-1, H, W)


def score(z: Tensor, unary: Tensor, right: Tensor, down: Tensor, mask: Tensor) -> Tensor:
    """The definition, for one image and many labellings."""
    across = (z[:, :, :-1] == z[:, :, 1:]) * right * mask[:, :-1] * mask[:, 1:]
    along = (z[:, :-1] == z[:, 1:]) * down * mask[:-1] * mask[1:]
    return (z * unary * mask).sum((1, 2)) + across.sum((1, 2)) + along.sum((1, 2))


@each_cut
@settings(max_examples=200)
@given(
    H=st.integers(2, 3),
    W=st.integers(2, 3),
    seed=st.integers(0, 10**6),
    ties=st.booleans(),
    masked=st.booleans(),
    normalize=st.booleans(),
    coupling=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_a_cut_is_the_enumeration(cut, H, W, seed, ties, masked, normalize, coupling):
    torch.manual_seed(seed)
    B = 3
    unary = torch.randint(-2, 3, (B, H, W)).double() if ties else 2 * torch.randn(B, H, W)
    right, down = (coupling * (torch.ones(s) if ties else torch.rand(s)) for s in ((B, H, W - 1), (B, H - 1, W)))
    labels, mask = torch.randint(2, (B, H, W)), torch.rand(B, H, W) < (0.7 if masked else 2)
    mask[:, 0, 0] = True
    loss = GridHinge(cut=cut, normalize=normalize, reduction="none")
    value = loss((unary, right, down), (labels, mask))
    predicted, every = loss.decode((unary, right, down)), every_image(H, W)
    for i in range(B):
        wrong = ((every != labels[i]) & mask[i]).sum((1, 2)) / (mask[i].sum() if normalize else 1)
        truth = score(labels[i : i + 1], unary[i], right[i], down[i], mask[i])
        best = (score(every, unary[i], right[i], down[i], mask[i]) + wrong).max() - truth
        assert value[i] == pytest.approx(float(best), abs=1e-6)
        everywhere = score(every, unary[i], right[i], down[i], torch.ones(H, W))
        at = every.eq(predicted[i]).all(2).all(1)
        assert everywhere[at] == pytest.approx(float(everywhere.max()), abs=1e-6)


def worth(z: np.ndarray, gain: np.ndarray, right: np.ndarray, down: np.ndarray) -> float:
    return (gain * z).sum() + (right * (z[:, 1:] == z[:, :-1])).sum() + (down * (z[1:] == z[:-1])).sum()


@pytest.mark.skipif(len(CUTS) < 2, reason="PyMaxflow is not installed: pip install '.[maxflow]'")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_two_cuts_agree_on_large_images(scale):
    draw = np.random.default_rng(0)
    gain = scale * (draw.normal(size=(40, 50)) + draw.normal(size=(40, 1)))
    right, down = scale * draw.random((40, 49)), scale * draw.random((39, 50))
    a, b = (worth(cut(gain, right, down), gain, right, down) for cut in CUTS)
    most = min(gain[gain > 0].sum(), -gain[gain < 0].sum())
    assert abs(a - b) <= (gain.size + right.size + down.size) * 4 * most / 2**31  # the bound that scipy_cut states


@each_cut
def test_weights_beyond_all_gains_tie_the_image_together(cut):
    gain = np.array([[1.0, -0.25], [-0.25, -0.25]])
    assert cut(gain, np.full((2, 1), 1e30), np.full((1, 2), 1e30)).all()
    assert not cut(-gain, np.full((2, 1), 1e30), np.full((1, 2), 1e30)).any()


@each_cut
@pytest.mark.parametrize("seed", range(5))
def test_pixels_that_are_known_do_not_blur_the_others(cut, seed):
    """Gains of ±1e15 leave no digits for the others in a flow, unless they are clipped first."""
    draw = np.random.default_rng(seed)
    gain, right, down = draw.normal(size=(3, 3)), draw.random((3, 2)), draw.random((2, 3))
    gain[0, 0], gain[2, 2] = 1e15, -1e15
    known = np.where(np.abs(gain) > 1e6, 0, gain), right, down
    every = [z.numpy().astype(bool) for z in every_image(3, 3)]
    best = max(worth(z, *known) for z in every if z[0, 0] and not z[2, 2])
    assert worth(cut(gain, right, down), *known) == pytest.approx(best, abs=1e-6)


def scores(B: int = 2, H: int = 3, W: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, W), torch.rand(B, H, W - 1), torch.rand(B, H - 1, W)


def test_negative_weights_are_refused_or_projected():
    unary, right, down = (u.requires_grad_() for u in scores())
    labels = torch.randint(2, (2, 3, 3))
    with pytest.raises(ValueError, match="not submodular"):
        GridHinge().decode((unary, right, down - 2))
    loss = GridHinge(negative="project")
    assert not loss.exact
    assert "exact=False" in repr(loss)
    value = loss((unary, right - 0.5, down), labels)
    expected = GridHinge()((unary, (right - 0.5).clamp(min=0), down), labels)
    assert value == expected
    (gradient,) = torch.autograd.grad(value, right)
    assert not gradient[right < 0.5].any()


def test_an_approximate_oracle_still_ascends():
    """So large a step makes the linearised weights negative."""
    w, strength = torch.randn(4, requires_grad=True), torch.ones(2, requires_grad=True)
    scores, labels = (torch.randn(2, 3, 3, 4) @ w, *strength), torch.randint(2, (2, 3, 3))
    problem = ProxProblem.from_scores(GridHinge(negative="project"), scores, labels, [w, strength], lr=5.0)
    point, duals = problem.start(), []
    for _ in range(10):
        vertex, _ = problem.conditional_gradient(point)
        point = problem.move(point, vertex)
        duals.append(float(problem.dual(point)))
    assert duals == sorted(duals)
    assert duals[0] >= 0


def test_minus_infinity_forbids_a_one():
    unary, right, down = scores()
    unary[:, 1, 1] = -torch.inf
    leaf, zeros = unary.requires_grad_(), torch.zeros(2, 3, 3, dtype=torch.long)
    assert not GridHinge().decode((unary, right, 9 + down))[:, 1, 1].any()
    value = GridHinge()((leaf, right, down), zeros)
    (gradient,) = torch.autograd.grad(value, leaf)
    assert value.isfinite()
    assert not gradient[:, 1, 1].any()
    assert GridHinge()((unary, right, down), zeros + 1) == torch.inf
