"""Structures beside torch-struct, and chains beside pytorch-crf: the likelihood, the hinge, and the best labelling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common import Options, interleaved, ratio, write
from proxsvm._extras import load
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.structures import Alignment, Chain, ProjectiveTree, Segments, SpanningTree, Spans, Structure

B, L = 32, 6  # samples; positions in a segment
Runs = dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """A structure with scores for T positions and K labels, and the same for a distribution of torch-struct."""

    structure: Structure
    scores: Callable[[int, int], Any]
    distribution: str = ""
    potentials: Callable[[int, int], Tensor] | None = None
    options: dict[str, Any] = {}  # noqa: RUF012


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def arcs(T: int, _: int) -> Tensor:
    return randn(B, T + 1, T + 1)


CASES = {
    "Chain": Case(
        Chain(), lambda T, K: (randn(B, T, K), randn(K, K)), "LinearChainCRF", lambda T, K: randn(B, T - 1, K, K)
    ),
    "Segments": Case(
        Segments(), lambda T, K: randn(B, T, L, K), "SemiMarkovCRF", lambda T, K: randn(B, T, L + 1, K, K)
    ),
    "ProjectiveTree": Case(ProjectiveTree(), arcs, "DependencyCRF", lambda T, _: randn(B, T, T), {"multiroot": False}),
    "SpanningTree": Case(
        SpanningTree(), arcs, "NonProjectiveDependencyCRF", lambda T, _: randn(B, T, T), {"multiroot": False}
    ),
    "Spans": Case(Spans(), lambda T, K: randn(B, T, T, K), "TreeCRF", lambda T, K: randn(B, T, T, K)),
    "Alignment": Case(Alignment(), lambda T, _: randn(B, T, T, 3)),
}


def target_of(structure: Structure, scores: Any) -> Any:
    """A labelling that exists: the best one of other scores."""
    other = tuple(map(torch.randn_like, scores)) if isinstance(scores, tuple) else torch.randn_like(scores)
    return StructuredHinge(structure).decode(other)


def both(value: Callable[[], Tensor]) -> Callable[[], None]:
    """The value and its gradient."""
    return lambda: value().backward()


def ours(structure: Structure, scores: Any) -> Runs:
    """With all checks of scores and target."""
    y, likelihood, hinge = target_of(structure, scores), CRF(structure), StructuredHinge(structure)
    return {
        "likelihood": both(lambda: likelihood(scores, y)),
        "hinge": both(lambda: hinge(scores, y)),
        "decode": lambda: hinge.decode(scores),
    }


def torch_structs(case: Case, T: int, K: int) -> Runs:
    """Its likelihood and maximum, given φ(y) (any indicators take the same time); a spanning tree has no maximum."""
    kind = getattr(load("torch_struct", extra="tests"), case.distribution)
    u = case.potentials(T, K) if case.potentials else torch.empty(0)
    phi = (u > 1).float()
    given = case.options
    runs: Runs = {"likelihood": both(lambda: (kind(1 * u, **given).partition - (u * phi).flatten(1).sum(1)).mean())}
    if case.distribution != "NonProjectiveDependencyCRF":
        runs["hinge"] = both(lambda: kind(1 * u, **given).max.mean())
        runs["decode"] = lambda: kind(1 * u, **given).argmax
    return runs


def pytorch_crfs(T: int, K: int) -> Runs:
    crf = load("torchcrf", extra="tests").CRF(K, batch_first=True)
    unary, y = randn(B, T, K), torch.randint(K, (B, T))
    return {"likelihood": both(lambda: -crf(unary, y, reduction="mean")), "decode": lambda: crf.decode(unary)}


def row(options: Options, own: Runs, theirs: Runs) -> dict[str, Any]:
    """Milliseconds of ours, and its ratio to theirs, for each run that both have."""
    found: dict[str, Any] = {}
    for name, run in own.items():
        runs = {"ours": run} | ({"theirs": theirs[name]} if name in theirs else {})
        times = interleaved(runs, options.rounds(25, quick=3), warm_up=2)
        found[f"{name}, ms"] = 1e3 * times["ours"].median
        found[f"{name} / theirs"] = ratio(times, "ours", "theirs") if name in theirs else "—"
    return found


def main(options: Options) -> None:
    warnings.filterwarnings("ignore", category=UserWarning)  # of torch-struct: distributions without argument checks
    torch.manual_seed(0)
    rows = [
        {"structure": name, "T": T}
        | row(options, ours(case.structure, case.scores(T, 5)), torch_structs(case, T, 5) if case.distribution else {})
        for name, case in CASES.items()
        for T in (20, 50)
    ]
    note = f"Forward and backward, and decoding; B = {B}, K = 5, segments of at most {L}."
    write(options, "structures", rows, f"{note} Ratios to torch-struct, which needs genbmm for alignments.")
    rows = [
        {"K": K} | row(options, ours(Chain(), CASES["Chain"].scores(50, K)), pytorch_crfs(50, K))
        for K in (5, 20, 50, 100)
    ]
    write(options, "structures_chain", rows, f"Chains beside pytorch-crf; B = {B}, T = 50.")
