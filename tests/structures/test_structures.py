"""Every structure against the list of its labellings: what holds for one holds for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem
from proxsvm._scores import inner, like, parts
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.losses.hulls import paid
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.structures import Structure
from proxsvm.structures.base import add
from proxsvm.verification import check_loss, verify
from tests.structures.cases import LIKELIHOODS, STRUCTURES, B, each_likelihood, each_structure, enumerate_all

seeds = st.integers(0, 10**6)


def mixture(weights: Tensor, phi: list[Any]) -> list[Tensor]:
    """Σ_j weights[j] φ_j for each score tensor."""
    return [
        sum(w.reshape(-1, *[1] * (f.dim() - 1)) * f for w, f in zip(weights, fs, strict=True))
        for fs in zip(*(parts(f) for f in phi), strict=True)
    ]


@given(case=st.sampled_from(STRUCTURES), seed=seeds, ties=st.booleans(), normalize=st.booleans())
def test_the_hinge_is_the_largest_of_all(case, seed, ties, normalize):
    torch.manual_seed(seed)
    structure = case.structure()
    scores, target, every = case.draw()
    if ties:
        scores = tuple(u.round() for u in scores)
    all_of = enumerate_all(structure, scores, target, every)
    loss = StructuredHinge(structure, normalize=normalize, reduction="none")
    truth = structure.features(all_of.y, all_of.u)
    cost = loss._part_costs(all_of.y, all_of.u)
    delta = torch.stack([paid(cost, add(f, like(truth, tuple(-x for x in parts(truth))))) for f in all_of.phi])
    assert (delta > -1e-12).all()
    expected = (all_of.scores + delta).amax(0) - inner(truth, all_of.u)
    torch.testing.assert_close(loss(scores, target), expected, atol=1e-10, rtol=1e-10)
    best = loss.decode(scores, **case.given(target))
    chosen = structure.best(all_of.u, all_of.y)
    torch.testing.assert_close(inner(chosen, all_of.u), all_of.scores.amax(0), atol=1e-10, rtol=1e-10)
    assert torch.equal(best, structure.labels(chosen, all_of.y))


@given(case=st.sampled_from(LIKELIHOODS), seed=seeds, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_the_likelihood_sums_over_all(case, seed, scale):
    torch.manual_seed(seed)
    structure = case.structure()
    scores, target, every = case.draw()
    scores = tuple(scale * u for u in scores)
    all_of = enumerate_all(structure, scores, target, every)
    distinct = unique(all_of.phi)
    weight = torch.where(distinct, all_of.scores, -torch.inf)
    log_z = weight.logsumexp(0)
    value = CRF(structure, reduction="none")(scores, target)
    truth = inner(structure.features(all_of.y, all_of.u), all_of.u)
    torch.testing.assert_close(value, log_z - truth, atol=1e-10 * scale, rtol=1e-10)
    found = CRF(structure).marginals(scores, **case.given(target))
    expected = structure.marginals(like(all_of.u, tuple(mixture(weight.softmax(0), all_of.phi))), all_of.y)
    for a, b in zip(parts(found), parts(expected), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def unique(phi: list[Any]) -> Tensor:
    """Which labellings are the first with their φ, ``[N, B]``: labels on padding make no difference."""
    flat = torch.stack([torch.cat([x.flatten(1) for x in parts(f)], 1) for f in phi])  # [N, B, M]
    same = torch.stack([(flat == f).all(2) for f in flat])  # [N, N, B]
    earlier = torch.ones(same.shape[:2], dtype=torch.bool).tril(-1)
    return ~(same & earlier[..., None]).any(1)


def losses(structure: Structure, **options: Any) -> list[Any]:
    """The hinge of a structure, and where it has marginals the smoothed hinge and the likelihood."""
    hinge = StructuredHinge(structure, **options)
    if not structure.likelihood:
        return [hinge]
    return [hinge, StructuredHinge(structure, smooth=True, **options), CRF(structure, **options)]


@each_structure
def test_they_are_support_functions_and_certified(case):
    scores, target, _ = case.draw()
    shift = 100.0 if case.name.startswith("grid") else 0.0  # weights that stay positive whatever noise is added
    scores = (scores[0], *(u + shift for u in scores[1:]))
    for loss in losses(case.structure()):
        check_loss(loss, scores, target)
        w = [nn.Parameter(0.3 * torch.randn(u.shape)) for u in scores]
        moved = tuple(u + 0.5 * x for u, x in zip(scores, w, strict=True))
        problem = ProxProblem.from_scores(loss, moved, target, w, lr=0.5, weight_decay=0.1)
        assert problem.gap(ExactQP().solve(problem)) == pytest.approx(0, abs=1e-5)
        for solver in (SingleStepFW(), MultiStepFW(20), CorrectiveFW(20)):
            report = verify(problem, solver)
            assert report.ok, report


@each_structure
def test_gradients_and_second_derivatives(case):
    structure = case.structure()
    scores, target, _ = case.draw()
    leaves = [u.clone().requires_grad_() for u in scores]
    for loss in losses(structure):
        if not loss.smooth:
            assert torch.autograd.gradcheck(lambda *u: loss(u, target), leaves)
        else:  # the direction of the likelihood, which is not the value's derivative
            loss(tuple(leaves), target).backward()
    if structure.likelihood:
        assert torch.autograd.gradgradcheck(lambda *u: CRF(structure)(u, target), leaves)


def layouts(u: Tensor) -> dict[str, Tensor]:
    """The same numbers in other memory orders."""
    dims = list(range(u.dim()))
    spaced = torch.stack([u, u], -1)[..., 0]
    return {
        "transposed": u.permute(dims[::-1]).contiguous().permute(dims[::-1]),
        "sliced": torch.cat([u, u], 0)[: len(u)],
        "every other": spaced,
        "expanded": u[:1].expand(u.shape) if (u == u[:1]).all() else u,
    }


@each_structure
@pytest.mark.parametrize("layout", ["transposed", "sliced", "every other", "expanded"])
def test_the_memory_layout_makes_no_difference(case, layout):
    structure = case.structure()
    scores, target, _ = case.draw()
    if layout == "expanded":
        scores = tuple(u[:1].expand(u.shape).contiguous() for u in scores)
    for loss in losses(structure):
        found = []
        for given_scores in (scores, tuple(layouts(u)[layout] for u in scores)):
            leaves = [u.detach().requires_grad_() for u in given_scores]
            value = loss(tuple(leaves), target)
            found.append([value.detach(), *torch.autograd.grad(value, leaves)])
            problem = ProxProblem.from_scores(loss, tuple(leaves), target, leaves, lr=0.1)
            found[-1] += problem.displacement(MultiStepFW(3).solve(problem))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


@each_structure
def test_half_precision_compilers_and_transforms(case):
    structure = case.structure()
    scores, target, _ = case.draw()
    half = tuple(u.to(torch.bfloat16) for u in scores)
    for loss in losses(structure):
        assert loss(half, target).dtype == torch.float32
        if not structure.likelihood:
            continue  # a decoder outside torch
        value = loss(scores, target)
        gradient = torch.func.grad(lambda u: loss(u, target))(scores)
        leaves = tuple(u.clone().requires_grad_() for u in scores)
        for a, b in zip(gradient, torch.autograd.grad(loss(leaves, target), leaves), strict=True):
            torch.testing.assert_close(a, b)
        compiled = torch.compile(lambda u: loss(u, target), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(scores), value)
        torch._dynamo.reset()
        twice = tuple(torch.stack([u, 2 * u]) for u in scores)
        batched = torch.func.vmap(lambda *u: loss(u, target))(*twice)
        torch.testing.assert_close(batched, torch.stack([value, loss(tuple(2 * u for u in scores), target)]))


@each_likelihood
def test_what_is_forbidden_is_never_chosen(case):
    """−inf at random parts of the first scores, but not at the truth's."""
    structure = case.structure()
    scores, target, every = case.draw()
    clean, y = structure.prepare("test", scores, target)
    truth = parts(structure.marginals(structure.features(y, structure.expand(clean, y)), y))[0]
    if truth.shape != scores[0].shape:
        return  # the input is arranged in another form
    illegal = (torch.rand(scores[0].shape) < 0.3) & (truth == 0)
    scores = (scores[0].masked_fill(illegal, -torch.inf), *scores[1:])
    leaves = [u.clone().requires_grad_() for u in scores]
    all_of = enumerate_all(structure, scores, target, every)
    for loss in losses(structure, reduction="none"):
        value = loss(tuple(leaves), target)
        assert value.isfinite().all()
        gradients = torch.autograd.grad(value.sum(), leaves)
        assert all(g.isfinite().all() for g in gradients)
        assert not gradients[0][illegal].any()
        found = structure.best(all_of.u, all_of.y)
        torch.testing.assert_close(inner(found, all_of.u), all_of.scores.amax(0))
        refused = scores[0].masked_fill(truth[:1].expand(B, *truth.shape[1:]) > 0, -torch.inf)
        assert loss((refused, *scores[1:]), target)[0] == torch.inf


@each_structure
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_not_finite_make_the_loss_so(case, bad):
    scores, target, _ = case.draw()
    for loss in losses(case.structure()):
        worse = scores[0].flatten(1).index_fill(1, torch.tensor([0]), bad).reshape(scores[0].shape)
        everywhere = torch.full_like(scores[0], bad)
        assert not loss((everywhere, *scores[1:]), target).isfinite()
        if "mask" not in case.name:  # the first part may be padding
            assert not loss((worse, *scores[1:]), target).isfinite()
