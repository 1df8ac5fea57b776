"""Every structure against the list of its labellings: what holds for one holds for all."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem, structures
from proxsvm._kernels import spanning_trees
from proxsvm._scores import inner, like, parts
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.losses.hulls import paid
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.structures import Chain, Matching, ProjectiveTree, Segments, SpanningTree, Structure, Tree, spanning_tree
from proxsvm.structures.base import add
from proxsvm.structures.label_tree import Labels
from proxsvm.verification import check_loss, verify
from tests.cases import LAYOUTS, expanded

B, T, K = 3, 4, 3


@dataclass(frozen=True)
class StructureCase:
    """``draw`` returns scores, a target, and all targets of its shape; ``known`` are lengths, or where they are."""

    name: str
    structure: Callable[[], Structure]
    draw: Callable[[], tuple[Any, Any, list[Any]]]
    known: dict[str, Any] = field(default_factory=dict)

    def given(self, target: Any) -> dict[str, Any]:
        """What decoders need to know of a target: its lengths, its tree."""
        return {name: target[at] if isinstance(at, int) else at for name, at in self.known.items()}

    def __repr__(self) -> str:
        return self.name


def words(size: int, labels: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(labels), repeat=size)))


def chain(own: bool = False, ends: bool = False, lengths: Any = None) -> tuple[Any, Any, list[Any]]:
    scores = [torch.randn(B, T, K), torch.randn(B, T - 1, K, K) if own else torch.randn(K, K)]
    scores += [torch.randn(K), torch.randn(B, K)] if ends else []

    def target(labels: Tensor) -> Any:
        return labels if lengths is None else (labels, torch.as_tensor(lengths))

    return tuple(scores), target(torch.randint(K, (B, T))), [target(w.expand(B, T)) for w in words(T, K)]


def tree(own: bool = False, sizes: Any = None) -> tuple[Any, Any, list[Any]]:
    parents = torch.tensor([[-1, 0, 0, 1], [2, -1, 1, 2], [-1, 0, -1, 2]])
    scores = torch.randn(B, T, K), torch.randn(B, T, K, K) if own else torch.randn(K, K)

    def target(labels: Tensor) -> Any:
        return (labels, parents) if sizes is None else (labels, parents, torch.as_tensor(sizes))

    return scores, target(torch.randint(K, (B, T))), [target(w.expand(B, T)) for w in words(T, K)]


def labels(tree: bool) -> tuple[Any, Any, list[Any]]:
    scores = (torch.randn(B, 4), torch.randn(4, 2, 2)) if tree else (torch.randn(B, 4),)
    return scores, torch.randint(2, (B, 4)), [w.expand(B, 4) for w in words(4, 2)]


def grid() -> tuple[Any, Any, list[Any]]:
    scores = 2 * torch.randn(B, 2, 3), torch.rand(B, 2, 2), torch.rand(B, 1, 3)
    return scores, torch.randint(2, (B, 2, 3)), [w.view(2, 3).expand(B, 2, 3) for w in words(6, 2)]


# Structures whose samples have their own sizes: every labelling of each sample, padded to one shape, the last repeated.


def batched(per_sample: list[list[Tensor]], shape: tuple[int, ...], sizes: Tensor | None, fill: int = 0) -> list[Any]:
    def padded(x: Tensor) -> Tensor:
        full = torch.full(shape, fill)
        full[tuple(slice(n) for n in x.shape)] = x
        return full

    N = max(map(len, per_sample))
    every = [torch.stack([padded(options[min(k, len(options) - 1)]) for options in per_sample]) for k in range(N)]
    return [labels if sizes is None else (labels, sizes) for labels in every]


def draw_one(every: list[Any]) -> Any:
    return every[int(torch.randint(len(every), ()))]


def heads_of(n: int, projective: bool) -> list[Tensor]:
    """All trees over n words with one child of the root, by the definition."""
    found = []
    for heads in itertools.product(range(n + 1), repeat=n):
        reached, before = {0}, -1
        while len(reached) != before:
            before = len(reached)
            reached |= {m for m, h in enumerate(heads, 1) if h in reached}
        arcs = [(min(h, m), max(h, m)) for m, h in enumerate(heads, 1)]
        crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
        if len(reached) == n + 1 and heads.count(0) == 1 and not (projective and crossing):
            found.append(torch.tensor(heads))
    return found


def dependencies(projective: bool, lengths: list[int] | None = None, R: int = 0) -> tuple[Any, Any, list[Any]]:
    sizes = None if lengths is None else torch.tensor(lengths)
    every = batched([heads_of(n, projective) for n in lengths or [4] * B], (4,), None)
    if R:
        every = [(heads, kinds.expand(B, 4)) for heads in every for kinds in words(4, R)]
    if sizes is not None:
        every = [(*(x if isinstance(x, tuple) else (x,)), sizes) for x in every]
    return (torch.randn(B, 5, 5, *([R] if R else [])),), draw_one(every), every


def binary_trees(i: int, j: int) -> list[list[tuple[int, int]]]:
    if i == j:
        return [[(i, i)]]
    return [[(i, j), *a, *b] for k in range(i, j) for a in binary_trees(i, k) for b in binary_trees(k + 1, j)]


def spans(lengths: list[int] | None = None, labels: int = 2) -> tuple[Any, Any, list[Any]]:
    def of(n: int) -> list[Tensor]:
        found = []
        for tree in binary_trees(0, n - 1):
            for word in words(len(tree), labels):
                chart = torch.full((n, n), -1)
                for (i, j), k in zip(tree, word.tolist(), strict=True):
                    chart[i, j] = k
                found.append(chart)
        return found

    n = 3
    every = batched([of(m) for m in lengths or [n] * B], (n, n), None if lengths is None else torch.tensor(lengths), -1)
    return (torch.randn(B, n, n, labels),), draw_one(every), every


def segments(lengths: list[int] | None = None) -> tuple[Any, Any, list[Any]]:
    """At most two positions a segment, two labels."""

    def of(n: int) -> list[list[tuple[int, int, int]]]:
        if n == 0:
            return [[]]
        return [[*a, (n - m, n, k)] for m in (1, 2) if m <= n for a in of(n - m) for k in range(2)]

    options = [of(n) for n in lengths or [4] * B]
    every = [[o[min(k, len(o) - 1)] for o in options] for k in range(max(map(len, options)))]
    return (torch.randn(B, 4, 2, 2),), draw_one(every), every


def alignment(lengths: list[list[int]] | None = None) -> tuple[Any, Any, list[Any]]:
    def of(s: int, t: int) -> list[Tensor]:
        if s < 1 or t < 1:
            return []
        if (s, t) == (1, 1):
            return [torch.tensor([[0]])]
        found = []
        for move, (di, dj) in enumerate(((1, 1), (1, 0), (0, 1))):
            for before in of(s - di, t - dj):
                path = torch.full((s, t), -1)
                path[: s - di, : t - dj] = before
                path[-1, -1] = move
                found.append(path)
        return found

    sizes = None if lengths is None else torch.tensor(lengths)
    every = batched([of(s, t) for s, t in lengths or [[3, 3]] * B], (3, 3), sizes, -1)
    return (torch.randn(B, 3, 3, 3),), draw_one(every), every


def matching(sizes: list[list[int]] | None = None) -> tuple[Any, Any, list[Any]]:
    options = [[torch.tensor(p) for p in itertools.permutations(range(m), n)] for n, m in sizes or [[3, 4]] * B]
    every = batched(options, (3,), None if sizes is None else torch.tensor(sizes))
    return (torch.randn(B, 3, 4),), draw_one(every), every


def holes() -> Tensor:
    return torch.tensor([[True, True, False, True], [False, False, True, False], [True, False, True, True]])


LENGTHS = [4, 1, 3]
STRUCTURES = [
    StructureCase("chain", Chain, chain),
    StructureCase("chain-own", Chain, lambda: chain(own=True)),
    StructureCase("chain-lengths", Chain, lambda: chain(own=True, ends=True, lengths=LENGTHS), {"lengths": 1}),
    StructureCase("chain-mask", Chain, lambda: chain(ends=True, lengths=holes()), {"lengths": 1}),
    StructureCase("chain-own-mask", Chain, lambda: chain(own=True, lengths=holes()), {"lengths": 1}),
    StructureCase("tree", Tree, tree, {"parents": 1}),
    StructureCase("tree-own", Tree, lambda: tree(own=True), {"parents": 1}),
    StructureCase("tree-mask", Tree, lambda: tree(own=True, sizes=holes()), {"parents": 1, "sizes": 2}),
    StructureCase("labels", Labels, lambda: labels(tree=False)),
    StructureCase("label-tree", lambda: structures.LabelTree([-1, 0, 0, 1]), lambda: labels(tree=True)),
    StructureCase("grid", structures.Grid, grid),
    StructureCase("segments", Segments, segments),
    StructureCase("segments-lengths", Segments, lambda: segments(LENGTHS), {"lengths": LENGTHS}),
    StructureCase("projective", ProjectiveTree, lambda: dependencies(True)),
    StructureCase("projective-lengths", ProjectiveTree, lambda: dependencies(True, LENGTHS), {"lengths": -1}),
    StructureCase("projective-labels", ProjectiveTree, lambda: dependencies(True, [3, 1, 2], R=2), {"lengths": -1}),
    StructureCase("spanning", SpanningTree, lambda: dependencies(False)),
    StructureCase("spanning-lengths", SpanningTree, lambda: dependencies(False, LENGTHS), {"lengths": -1}),
    StructureCase("spanning-labels", SpanningTree, lambda: dependencies(False, [3, 1, 2], R=2), {"lengths": -1}),
    StructureCase("spans", structures.Spans, lambda: spans(labels=1)),
    StructureCase("spans-lengths", structures.Spans, lambda: spans([3, 1, 2]), {"lengths": 1}),
    StructureCase("alignment", structures.Alignment, alignment),
    StructureCase(
        "alignment-lengths", structures.Alignment, lambda: alignment([[3, 3], [1, 2], [2, 3]]), {"lengths": 1}
    ),
    StructureCase("matching", Matching, matching),
    StructureCase("matching-sizes", Matching, lambda: matching([[3, 4], [2, 2], [1, 3]]), {"sizes": 1}),
]
LIKELIHOODS = [case for case in STRUCTURES if case.structure().likelihood]

each_structure = pytest.mark.parametrize("case", STRUCTURES, ids=repr)
each_likelihood = pytest.mark.parametrize("case", LIKELIHOODS, ids=repr)


def form(tensors: Any) -> Any:
    """Scores in the form in which a structure takes them: one tensor, or a tuple."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


@dataclass(frozen=True)
class Enumeration:
    """All N labellings of a batch, by their φ, and their scores ``[N, B]``; ``u`` and ``y`` are prepared."""

    u: Any
    y: Any
    phi: list[Any]
    scores: Tensor


def enumerate_all(structure: Structure, scores: Any, target: Any, every: list[Any]) -> Enumeration:
    """By φ alone."""
    u, y = structure.prepare("test", form(scores), target)
    u = structure.expand(u, y)
    phi = [structure.features(structure.prepare("test", form(scores), other)[1], u) for other in every]
    return Enumeration(u, y, phi, torch.stack([inner(f, u) for f in phi]))


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
    torch.testing.assert_close(loss(form(scores), target), expected, atol=1e-10, rtol=1e-10)
    best = loss.decode(form(scores), **case.given(target))
    chosen = structure.best(all_of.u, all_of.y)
    torch.testing.assert_close(inner(chosen, all_of.u), all_of.scores.amax(0), atol=1e-10, rtol=1e-10)
    assert str(best) == str(structure.labels(chosen, all_of.y))  # tensors, tuples or lists


@given(case=st.sampled_from(LIKELIHOODS), seed=seeds, scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_the_likelihood_sums_over_all(case, seed, scale):
    torch.manual_seed(seed)
    structure = case.structure()
    scores, target, every = case.draw()
    scores = tuple(scale * u for u in scores)
    all_of = enumerate_all(structure, scores, target, every)
    distinct = unique(all_of.phi)
    weight = torch.where(distinct, all_of.scores, -torch.inf)
    log_z = weight.logsumexp(0)
    value = CRF(structure, reduction="none")(form(scores), target)
    truth = inner(structure.features(all_of.y, all_of.u), all_of.u)
    torch.testing.assert_close(value, log_z - truth, atol=1e-10 * scale, rtol=1e-10)
    found = CRF(structure).marginals(form(scores), **case.given(target))
    expected = structure.marginals(like(all_of.u, tuple(mixture(weight.softmax(0), all_of.phi))), all_of.y)
    torch.testing.assert_close(parts(found), parts(expected), atol=1e-10, rtol=1e-10)


def unique(phi: list[Any]) -> Tensor:
    """Which labellings are the first with their φ, ``[N, B]``: labels on padding make no difference."""
    flat = torch.stack([torch.cat([x.flatten(1) for x in parts(f)], 1) for f in phi])  # [N, B, M]
    same = torch.stack([(flat == f).all(2) for f in flat])  # [N, N, B]
    earlier = torch.ones(same.shape[:2], dtype=torch.bool).tril(-1)
    return ~(same & earlier[..., None]).any(1)


def rows(labelling: Any) -> list[str]:
    """The labelling of each sample, as text: labels are tensors, tuples of them, or lists."""
    each = zip(*labelling, strict=True) if isinstance(labelling, tuple) else labelling
    return [str([x.tolist() for x in row]) if isinstance(row, tuple) else str(row) for row in each]


@given(case=st.sampled_from([c for c in LIKELIHOODS if "spanning" not in c.name]), seed=seeds, k=st.integers(1, 5))
def test_the_k_best_are_those_of_the_enumeration(case, seed, k):
    torch.manual_seed(seed)
    structure = case.structure()
    scores, target, every = case.draw()
    all_of = enumerate_all(structure, scores, target, every)
    ordered = torch.where(unique(all_of.phi), all_of.scores, -torch.inf).sort(0, descending=True)
    found, values = structure.k_best(form(scores), k, **case.given(target))
    assert values.shape == (k, B)
    n = min(k, len(every))
    torch.testing.assert_close(values[:n], ordered.values[:n], atol=1e-10, rtol=1e-10)
    assert (values[n:] == -torch.inf).all()  # fewer than k
    each = [rows(structure.labels(phi, all_of.y)) for phi in all_of.phi]
    for j, labelling in enumerate(found):
        for b, row in enumerate(rows(labelling)):
            rank = j if values[j, b].isfinite() else 0
            assert row == each[ordered.indices[rank, b]][b]


@each_likelihood
def test_samples_have_the_probabilities_of_their_labellings(case):
    """Pearson's χ² over all labellings, those that are expected less than five times in one cell."""
    draws, structure = 200, case.structure()
    scores, target, every = case.draw()
    all_of = enumerate_all(structure, scores, target, every)
    p = torch.where(unique(all_of.phi), all_of.scores, -torch.inf).softmax(0)
    each = [rows(structure.labels(phi, all_of.y)) for phi in all_of.phi]
    generator = torch.Generator().manual_seed(0)
    drawn = [rows(x) for x in structure.sample(form(scores), draws, generator=generator, **case.given(target))]
    for b in range(B):
        expected: dict[str, float] = {}
        for labelling, weight in zip(each, p[:, b].tolist(), strict=True):
            expected[labelling[b]] = expected.get(labelling[b], 0.0) + draws * weight
        observed = Counter(row[b] for row in drawn)
        assert set(observed) <= set(expected)
        often = [row for row in expected if expected[row] >= 5]
        cells = [(observed[row], expected[row]) for row in often]
        cells.append((draws - sum(o for o, _ in cells), draws - sum(e for _, e in cells)))
        chi = sum((o - e) ** 2 / e for o, e in cells if e > 1e-9)
        assert chi < len(cells) + 5 * (2 * len(cells)) ** 0.5


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_compiled_sum_over_spanning_trees_is_that_of_the_recursion(scale, monkeypatch):
    scores, lengths = scale * torch.randn(3, 9, 9), torch.tensor([8, 8, 5])
    scores[1, 8] = -torch.inf  # a head of nobody
    values = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(spanning_tree, "has_numba", lambda: False)
        u, y = SpanningTree().prepare("test", scores, None, lengths=lengths)
        log_z = SpanningTree().total(u, y, structures.log_sum_exp)
        values.append((log_z, CRF(SpanningTree()).marginals(scores, lengths=lengths)))
    for a, b in zip(*values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-12)
    of_words = values[0][1].sum(1)[:, 1:]
    torch.testing.assert_close(of_words, (torch.arange(8) < lengths[:, None]).to(of_words), rtol=0, atol=1e-12)


def test_words_that_nobody_but_the_root_can_head():
    scores, heads = torch.zeros(2, 4, 4), torch.tensor([[3, 3, 0], [2, 0, 2]])
    scores[0, 1:, 3] = scores[1, 1:, 1:3] = -torch.inf  # one, and two
    assert CRF(SpanningTree(), reduction="none")(scores, heads).exp().tolist() == pytest.approx([3.0, torch.inf])


def test_the_compiled_sum_over_spanning_trees_batches_and_hides_no_error(monkeypatch):
    scores, heads, loss = torch.randn(2, 4, 4), torch.stack([HEADS, HEADS.flip(0)]), CRF(SpanningTree())
    over_targets = torch.func.vmap(lambda y: loss(scores, y))(heads)
    torch.testing.assert_close(over_targets, torch.stack([loss(scores, y) for y in heads]))
    hessian = torch.func.jacrev(torch.func.grad(lambda u: loss(u, HEADS)))(scores)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(lambda u: loss(u, HEADS), scores))

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(spanning_trees, "eliminate", broken)
    monkeypatch.setattr(spanning_tree, "has_numba", lambda: True)
    with pytest.raises(RuntimeError, match="broken"):
        loss(scores, HEADS)


@pytest.mark.parametrize(
    ("structure", "shape"), [(SpanningTree(), (1, 3, 3)), (Matching(), (1, 2, 2)), (Segments(), (1, 2, 1, 1))]
)
def test_what_is_no_recursion_has_no_k_best(structure, shape):
    with pytest.raises(ValueError, match="k is 0"):
        structure.k_best(torch.zeros(shape), 0)
    if not isinstance(structure, Segments):
        with pytest.raises(NotImplementedError, match="k best"):
            structure.k_best(torch.zeros(shape), 2)
    if not structure.likelihood:
        with pytest.raises(NotImplementedError, match="no sum, sample"):
            structure.sample(torch.zeros(shape))


class Product(Structure):
    """Something that is no recursion of sums."""

    def total(self, scores: Any, target: Any, reduce: Any) -> Tensor:
        return reduce(scores, 1).cumsum(0)


def test_a_recursion_that_has_no_k_best_says_so():
    with pytest.raises(NotImplementedError, match=r"cumsum.* nor a rearrangement"):
        Product().k_best(torch.zeros(1, 2), 2)


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
        check_loss(loss, form(scores), target)
        w = [nn.Parameter(0.3 * torch.randn(u.shape)) for u in scores]
        moved = form([u + 0.5 * x for u, x in zip(scores, w, strict=True)])
        problem = ProxProblem.from_scores(loss, moved, target, w, lr=0.5, weight_decay=0.1)
        polytope = loss.structure.polytope(*expanded(loss, moved, target)) is not None
        exact = ExactQP() if polytope or not isinstance(loss, CRF) else CorrectiveFW(500, tol=1e-8)
        assert problem.gap(exact.solve(problem)) == pytest.approx(0, abs=1e-5)
        for solver in (SingleStepFW(), MultiStepFW(20), CorrectiveFW(20)):
            report = verify(problem, solver, exact=exact)
            assert report.ok, report


@each_structure
def test_gradients_and_second_derivatives(case):
    structure = case.structure()
    scores, target, _ = case.draw()
    leaves = [u.clone().requires_grad_() for u in scores]
    for loss in losses(structure):
        if not loss.smooth:
            assert torch.autograd.gradcheck(lambda *u: loss(form(u), target), leaves)
        else:  # the direction of the likelihood, which is not the value's derivative
            loss(form(leaves), target).backward()
    if structure.likelihood:
        assert torch.autograd.gradgradcheck(lambda *u: CRF(structure)(form(u), target), leaves)


@each_structure
def test_half_precision_compilers_and_transforms(case):
    structure = case.structure()
    scores, target, _ = case.draw()
    half = tuple(u.to(torch.bfloat16) for u in scores)
    assert all(loss(form(half), target).dtype == torch.float32 for loss in losses(structure))
    outside_torch = isinstance(structure, (structures.Grid, Matching, SpanningTree))  # their decoders
    tried = [loss for loss in losses(structure) if not outside_torch or isinstance(loss, CRF)]

    def values(*u):
        return tuple(loss(form(u), target) for loss in tried)

    if tried:
        compiled = torch.compile(values, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*scores), values(*scores))
        torch._dynamo.reset()
        batched = torch.func.vmap(values)(*(torch.stack([u, 2 * u]) for u in scores))
        expected = zip(values(*scores), values(*(2 * u for u in scores)), strict=True)
        torch.testing.assert_close(batched, tuple(map(torch.stack, expected)))
    for loss in tried:
        gradient = torch.func.grad(lambda u: loss(form(u), target))(scores)
        leaves = tuple(u.clone().requires_grad_() for u in scores)
        torch.testing.assert_close(gradient, torch.autograd.grad(loss(form(leaves), target), leaves))


@each_structure
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inference_needs_no_graph(case, context):
    structure = case.structure()
    scores, target, _ = case.draw()

    def found():
        results = [loss(form(scores), target) for loss in losses(structure)]
        results.append(StructuredHinge(structure).decode(form(scores), **case.given(target)))
        if structure.likelihood:
            results.append(CRF(structure).marginals(form(scores), **case.given(target)))
            results.append(structure.sample(form(scores), generator=torch.manual_seed(0), **case.given(target)))
            if not isinstance(structure, SpanningTree):
                results.append(structure.k_best(form(scores), 2, **case.given(target)))
        return str(results)

    with torch.enable_grad():
        expected = found()
    with context():
        assert found() == expected
        scores = tuple(u.clone() for u in scores)  # in inference mode tensors of their own kind
        inside = found()
    assert inside == found() == expected


@each_structure
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_memory_layout_makes_no_difference(case, layout):
    scores, target, _ = case.draw()
    viewed = tuple(LAYOUTS[layout](u) for u in scores)
    plain = tuple(u.clone(memory_format=torch.contiguous_format).requires_grad_() for u in viewed)
    views = tuple(u.detach().requires_grad_() for u in viewed)
    assert all(torch.equal(a, b) for a, b in zip(plain, views, strict=True))
    for loss in losses(case.structure()):
        found = []
        for u in (views, plain):
            value, decoded = loss(form(u), target), loss.decode(form(u), **case.given(target))
            found.append((value, torch.autograd.grad(value, u), str(decoded)))
        torch.testing.assert_close(found[0][:2], found[1][:2])
        assert found[0][2] == found[1][2]
    structure = case.structure()
    u, y = structure.prepare("test", form(scores), target)
    views = [LAYOUTS[layout](x) for x in parts(structure.expand(u, y))]  # solvers find the best of scores of their own
    found = (structure.best(like(u, tuple(x)), y) for x in (views, [x.contiguous() for x in views]))
    for a, b in zip(*map(parts, found), strict=True):
        assert torch.equal(a, b)


@each_likelihood
def test_what_is_forbidden_is_never_chosen(case):
    """−inf at random parts of the first scores, but not at the truth's."""
    structure = case.structure()
    scores, target, every = case.draw()
    clean, y = structure.prepare("test", form(scores), target)
    truth = parts(structure.marginals(structure.features(y, structure.expand(clean, y)), y))[0]
    if truth.shape != scores[0].shape:
        return  # the input is arranged in another form
    illegal = (torch.rand(scores[0].shape) < 0.3) & (truth == 0)
    scores = (scores[0].masked_fill(illegal, -torch.inf), *scores[1:])
    leaves = [u.clone().requires_grad_() for u in scores]
    all_of = enumerate_all(structure, scores, target, every)
    for loss in losses(structure, reduction="none"):
        value = loss(form(leaves), target)
        assert value.isfinite().all()
        gradients = torch.autograd.grad(value.sum(), leaves)
        assert all(g.isfinite().all() for g in gradients)
        assert not gradients[0][illegal].any()
        found = structure.best(all_of.u, all_of.y)
        torch.testing.assert_close(inner(found, all_of.u), all_of.scores.amax(0))
        refused = scores[0].masked_fill(truth[:1].expand(B, *truth.shape[1:]) > 0, -torch.inf)
        assert loss(form((refused, *scores[1:])), target)[0] == torch.inf


@each_structure
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_not_finite_make_the_loss_so(case, bad):
    scores, target, _ = case.draw()
    structure = case.structure()
    clean, y = structure.prepare("test", form(scores), target)
    truth = parts(structure.marginals(structure.features(y, structure.expand(clean, y)), y))[0]
    bad_scores = [torch.full_like(scores[0], bad)]
    if truth.shape == scores[0].shape:  # one part of the truth of the first sample
        at = tuple(truth[0].nonzero()[0].tolist())
        bad_scores.append(scores[0].index_put(tuple(map(torch.tensor, (0, *at))), torch.tensor(bad)))
    for loss, worse in itertools.product(losses(structure), bad_scores):
        assert not loss(form((worse, *scores[1:])), target).isfinite()


@pytest.mark.parametrize("loss", losses(Chain()), ids=repr)
def test_padding_by_uint8_masks_and_by_minus_100(loss):
    """As in pytorch-crf, and as in CrossEntropy."""
    scores, labels = (torch.randn(B, 4, 3), torch.randn(3, 3)), torch.randint(3, (B, 4))
    for mask in (torch.arange(4) < torch.tensor([[4], [1], [3]]), holes()):
        expected = loss(scores, (labels, mask))
        ignored = labels.masked_fill(~mask, -100)
        padded = scores[0].masked_fill(~mask[..., None], torch.nan), scores[1]
        for target in ((labels, mask.to(torch.uint8)), ignored, (ignored, mask), (ignored, torch.full((B,), 4))):
            assert torch.equal(loss(padded, target), expected)
    with pytest.raises(ValueError, match="empty sample"):
        loss(scores, torch.full((B, 4), -100))


HEADS = torch.tensor([[2, 0, 2], [0, 1, 1]])
MOVES = torch.tensor([[[0, 2, -1], [-1, -1, 0]]])
SPAN = torch.tensor([[[0, -1, 0], [-1, 0, 0], [-1, -1, 0]]])
ENDS = torch.tensor([[1, 0, 1]])
BAD = {
    "a cycle": (SpanningTree(), (2, 4, 4), torch.tensor([[2, 1, 0], [0, 1, 1]]), "cycle"),
    "a second root": (SpanningTree(), (2, 4, 4), HEADS * torch.tensor([[1, 1, 0]]), "second one"),
    "no root": (ProjectiveTree(), (2, 4, 4), HEADS.clamp(min=1), "no root"),
    "crossing arcs": (ProjectiveTree(), (1, 5, 5), torch.tensor([[3, 0, 2, 2]]), "cross"),
    "a head outside": (SpanningTree(), (2, 4, 4), HEADS + 3, "neither the root nor a word"),
    "heads beyond the length": (SpanningTree(), (2, 4, 4), (HEADS, torch.tensor([3, 0])), "length outside"),
    "a length above the scores'": (SpanningTree(), (2, 4, 4), (HEADS, torch.tensor([4, 3])), "length outside"),
    "no words": (SpanningTree(), (2, 1, 1), HEADS[:, :0], "with T ≥ 1 words"),
    "no arc labels": (SpanningTree(), (2, 4, 4, 2), HEADS, "not \\(heads, labels"),
    "an arc label outside": (SpanningTree(), (2, 4, 4, 2), (HEADS, HEADS + 2), "label outside"),
    "heads of another shape": (SpanningTree(), (2, 4, 4), HEADS[:, :2], "heads of shape"),
    "float heads": (SpanningTree(), (2, 4, 4), HEADS.double(), "neither integer nor bool"),
    "no target": (SpanningTree(), (2, 4, 4), None, "got no target"),
    "scores of another form": (SpanningTree(), (2, 4), HEADS, "expected \\[B, T \\+ 1, T \\+ 1\\]"),
    "an open segment": (Segments(), (1, 3, 2, 2), (ENDS * 0, ENDS * 0), "no segment ends"),
    "a long segment": (Segments(), (1, 3, 1, 2), (ENDS * 0, ENDS - 1 + torch.tensor([[0, 0, 1]])), "more than L"),
    "a segment of two labels": (Segments(), (1, 3, 3, 2), (torch.tensor([[0, 1, 0]]), ENDS), "different labels"),
    "a segment label outside": (Segments(), (1, 3, 2, 2), (ENDS + 1, ENDS), "label outside"),
    "a gap between segments": (Segments(), (1, 3, 2, 2), [[(0, 1, 0), (2, 3, 0)]], "from 1 on"),
    "a segment without a label": (Segments(), (1, 3, 3, 2), [[(0, 3)]], "expected integers"),
    "a segment with half a label": (Segments(), (1, 3, 3, 2), [[(0, 3, 0.5)]], "expected integers"),
    "a segment that is too long": (Segments(), (1, 3, 3, 2), [[(0, 4, 0)]], "at most 3"),
    "too few spans": (structures.Spans(), (1, 3, 3, 1), SPAN.clamp(max=-1), "no binary tree"),
    "crossing spans": (structures.Spans(), (1, 4, 4, 1), None, "cross"),
    "a span label outside": (structures.Spans(), (1, 3, 3, 1), SPAN + 1, "label outside"),
    "a broken path": (structures.Alignment(), (1, 2, 3, 3), MOVES.masked_fill(MOVES == 2, -1), "no path"),
    "a move outside": (structures.Alignment(), (1, 2, 3, 3), MOVES + 3, "move outside"),
    "an assignment twice": (Matching(), (1, 2, 2), torch.tensor([[1, 1]]), "two rows share"),
    "a column outside": (Matching(), (1, 2, 2), torch.tensor([[1, 2]]), "column outside"),
    "more rows than columns": (Matching(), (1, 3, 2), torch.tensor([[0, 1, 1]]), "more rows than columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    structure, shape, target, message = BAD[name]
    if name == "crossing spans":  # seven spans, of which 0-1 and 1-2 cross
        target = torch.full((1, 4, 4), -1)
        target[0, [0, 1, 2, 3, 0, 1, 0], [0, 1, 2, 3, 1, 2, 3]] = 0
    with pytest.raises((ValueError, TypeError), match=message):
        StructuredHinge(structure)(torch.zeros(shape), target)


def test_segments_of_a_data_loader_are_a_list():
    scores, target = torch.randn(1, 3, 2, 2), (torch.tensor([[0, 1, 1]]), ENDS)
    for loss in losses(Segments()):
        assert loss(scores, list(target)) == loss(scores, target) == loss(scores, [[(0, 1, 0), (1, 3, 1)]])


def test_what_has_no_sum_has_no_likelihood():
    with pytest.raises(ValueError, match="use StructuredHinge"):
        CRF(Matching())
    with pytest.raises(ValueError, match="needs marginals"):
        StructuredHinge(structures.Grid(), smooth=True)
    with pytest.raises(ValueError, match="no labels for a cost matrix"):
        StructuredHinge(Matching(), cost=1 - torch.eye(2))(torch.zeros(1, 2, 2), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="cost is for 2 labels, but the scores have 3"):
        StructuredHinge(Segments(), cost=1 - torch.eye(2))(torch.zeros(1, 3, 2, 3), (0 * ENDS, 0 * ENDS + 1))


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("total", lambda x: x.sum(), r"Broken.total returned shape \(\); expected one per sample, \(3,\)"),
        ("total", lambda x: x[:, None], r"Broken.total returned shape \(3, 1\)"),
        ("features", lambda x: x.long(), "Broken.features returned torch.int64; expected that of the scores"),
        ("features", lambda x: x[:, :2], r"Broken.features returned shapes \[\(3, 2, 5\)\]"),
        ("cost", lambda x: x[:, :1], r"Broken.cost returned shapes \[\(3, 1, 5\)\]"),
        ("cost", lambda x: None, None),  # for zeros
    ],
)
def test_check_loss_names_what_is_wrong_with_a_structure(method, change, message):
    kind = ProjectiveTree
    broken = type("Broken", (kind,), {method: lambda *args: change(getattr(kind, method)(*args))})
    (scores,), target, _ = dependencies(True)
    for loss in losses(broken()):
        if message is None:
            check_loss(loss, scores, target)
        else:
            with pytest.raises((ValueError, TypeError), match=message):
                check_loss(loss, scores, target)


# Values and marginals agree with torch-struct's, for the distributions that both have.


def their_chain(own: Tensor) -> tuple[Any, Any]:
    """φ(n, z', z), without unary scores."""
    return own.transpose(2, 3), lambda edge: edge.transpose(2, 3)


def their_dependencies(u: Tensor) -> tuple[Any, Any]:
    """The root's scores are on the diagonal."""
    arcs = u[:, 1:, 1:].diagonal_scatter(u[:, 0, 1:], 0, 1, 2)

    def back(x: Tensor) -> Tensor:
        found = torch.zeros_like(u)
        found[:, 1:, 1:] = x - torch.diag_embed(x.diagonal(0, 1, 2))
        found[:, 0, 1:] = x.diagonal(0, 1, 2)
        return found

    return arcs, back


def their_segments(u: Tensor) -> tuple[Any, Any]:
    """φ(n, length, z', z), which does not depend on z: every labelling counts once for each label before the first."""
    edge = torch.cat([torch.full_like(u[:, :, :1], -1e9), u], 2)[..., None].expand(*u.shape[:2], -1, K, K).clone()
    edge[:, 0] -= torch.tensor(float(K)).log()
    return edge, lambda x: x.sum(4)[:, :, 1:]


@pytest.mark.filterwarnings("ignore")  # of torch-struct
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 2, 4])], ids=["full", "lengths"])
@pytest.mark.parametrize(
    ("structure", "theirs", "convert", "shape", "options"),
    [
        (Chain(), "LinearChainCRF", their_chain, (3, 4, 3, 3), {}),
        (ProjectiveTree(), "DependencyCRF", their_dependencies, (3, 6, 6), {"multiroot": False}),
        (SpanningTree(), "NonProjectiveDependencyCRF", their_dependencies, (3, 6, 6), {"multiroot": False}),
        (structures.Spans(), "TreeCRF", lambda u: (u, lambda x: x), (3, 5, 5, 3), {}),
        (Segments(), "SemiMarkovCRF", their_segments, (3, 5, 3, 3), {}),
    ],
    ids=["chain", "projective", "spanning", "spans", "segments"],
)
def test_it_is_torch_structs(structure: Structure, theirs: str, convert, shape, options, lengths):
    torch_struct = pytest.importorskip("torch_struct")
    if lengths is not None and isinstance(structure, (SpanningTree, Segments)):
        pytest.skip("torch-struct has no lengths for spanning trees, and for segments not those of the enumeration")
    u = torch.randn(shape)
    given, back = convert(u)
    leaf = given.clone().requires_grad_()
    other = getattr(torch_struct, theirs)(1 * leaf, lengths=lengths, **options)
    scores = (torch.zeros(3, 5, 3), u) if isinstance(structure, Chain) else u
    known = {} if lengths is None else {"lengths": lengths}
    prepared, sample = structure.prepare("test", scores, None, **known)
    close = {"rtol": 0, "atol": 1e-4 if isinstance(structure, SpanningTree) else 1e-6}  # it adds 1e-5 to a determinant
    log_z = structure.total(prepared, sample, structures.log_sum_exp)
    torch.testing.assert_close(log_z, other.partition.detach(), **close)
    mine = CRF(structure).marginals(scores, **known)
    torch.testing.assert_close(mine[1] if isinstance(mine, tuple) else mine, back(other.marginals.detach()), **close)
    if not isinstance(structure, SpanningTree):  # torch-struct has no best one
        best = structure.best(structure.expand(prepared, sample), sample)
        torch.testing.assert_close(best[1] if isinstance(best, tuple) else best, back(other.argmax.detach()), **close)
