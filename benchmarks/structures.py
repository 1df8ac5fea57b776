"""Structures beside torch-struct, and chains beside pytorch-crf: the likelihood, the hinge, and the best labelling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import Options, interleaved, ratio, write
from proxsvm._extras import load
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.structures import Alignment, Chain, ProjectiveTree, Segments, SpanningTree, Spans, Structure

B, L = 32, 6  # samples; positions in a segment
Runs = dict[str, Callable[[], Any]]


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def cases(T: int, K: int) -> dict[str, tuple[Structure, Any, str, tuple[int, ...]]]:
    """Structures with their scores, the distributions of torch-struct and the shapes of their potentials."""
    arcs = randn(B, T + 1, T + 1)
    return {
        "Chain": (Chain(), (randn(B, T, K), randn(K, K)), "LinearChainCRF", (B, T - 1, K, K)),
        "Segments": (Segments(), randn(B, T, L, K), "SemiMarkovCRF", (B, T, L + 1, K, K)),
        "ProjectiveTree": (ProjectiveTree(), arcs, "DependencyCRF", (B, T, T)),
        "SpanningTree": (SpanningTree(), arcs, "NonProjectiveDependencyCRF", (B, T, T)),
        "Spans": (Spans(), randn(B, T, T, K), "TreeCRF", (B, T, T, K)),
        "Alignment": (Alignment(), randn(B, T, T, 3), "", ()),
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


def torch_structs(distribution: str, shape: tuple[int, ...]) -> Runs:
    """Its likelihood and maximum, given φ(y) (any indicators take the same time); a spanning tree has no maximum."""
    if not distribution:
        return {}
    kind, u = getattr(load("torch_struct", extra="tests"), distribution), randn(*shape)
    phi, given = (u > 1).float(), {"multiroot": False} if "Dependency" in distribution else {}
    runs: Runs = {"likelihood": both(lambda: (kind(1 * u, **given).partition - (u * phi).flatten(1).sum(1)).mean())}
    if distribution != "NonProjectiveDependencyCRF":
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
        {"structure": name, "T": T} | row(options, ours(structure, scores), torch_structs(*theirs))
        for T in (20, 50)
        for name, (structure, scores, *theirs) in cases(T, 5).items()
    ]
    note = f"Forward and backward, and decoding; B = {B}, K = 5, segments of at most {L}."
    write(options, "structures", rows, f"{note} Ratios to torch-struct, which needs genbmm for alignments.")
    rows = [
        {"K": K} | row(options, ours(Chain(), (randn(B, 50, K), randn(K, K))), pytorch_crfs(50, K))
        for K in (5, 20, 50, 100)
    ]
    write(options, "structures_chain", rows, f"Chains beside pytorch-crf; B = {B}, T = 50.")
