"""The network around w_t as its Jacobian, from the retained graph of one forward pass.

    vjp(s) = Jᵀ s      one backward pass
    jvp(d) = J d       a backward pass through the backward pass

No second forward pass: dropout masks and batch-norm statistics are those of the one that computed the scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import require_dense
from proxsvm.linearization.base import LinearMap
from proxsvm.losses.base import Scores, like, parts

FUSED = (
    "a multi-step solver differentiates twice, which a fused operation of this network cannot do. For attention use "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH); for a cuDNN RNN run the forward pass under "
    "torch.backends.cudnn.flags(enabled=False); pass a model that is not torch.compile'd. SingleStepFW needs none of "
    "this"
)
HINTS = {  # what autograd says, and what a user can do about it
    "second time": "the graph of the scores has been freed: do not call backward() on the loss first, the solver "
    "differentiates by itself. (A closure that calls backward(), as trainers write it, must call the optimizer's own "
    "criterion, optimizer.loss: a copy, as sklearn.clone and skorch make one, is not watched)",
    "modified by an inplace operation": "the parameters changed after the scores were computed: build a new problem "
    "after every step",
    "double backward": FUSED,
    "not implemented": FUSED,
    "derivative for": FUSED,
}


class Linearization(LinearMap):
    """The linear map d ↦ J d from displacements of the parameters to changes of the scores.

    Args:
        scores: a tensor or a tuple of tensors, computed from ``params``, with their graph.
        params: the parameters, each requiring a gradient.

    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> line = Linearization(w ** 2, [w])          # J = diag(2w)
    >>> line.vjp(torch.tensor([1.0, 1.0]))
    [tensor([2., 4.])]
    >>> line.jvp([torch.tensor([1.0, 0.5])])
    tensor([2., 2.])
    """

    def __init__(self, scores: Scores, params: Sequence[Tensor]) -> None:
        if not any(u.requires_grad for u in parts(scores)):
            raise ValueError(
                "the scores carry no graph, so they cannot be linearised: compute them with gradients enabled, "
                "from the parameters, and do not detach them"
            )
        frozen = [i for i, p in enumerate(params) if not p.requires_grad]
        if frozen:
            raise ValueError(
                f"parameters {frozen} do not require a gradient; pass only those that do: "
                "[p for p in params if p.requires_grad]"
            )
        super().__init__(scores, params)
        self._v: tuple[Tensor, ...] = ()  # the jvp's dummy variable v and g(v) = Jᵀ v, created when needed
        self._g: tuple[Tensor, ...] = ()

    def vjp(self, s: Scores, reuse: bool = False) -> list[Tensor]:
        """Jᵀ s, one tensor per parameter; ``s`` has the structure of the scores.

        With ``reuse`` this backward pass is recorded and used by later calls of :meth:`jvp`, which would else start
        with one of their own: for solvers that need both.
        """
        if reuse and not self._v:
            self._record(parts(s))
            return [g.detach() for g in self._g]
        with _explained():
            return self._pulled_back(parts(s), retain_graph=True)

    def _pulled_back(self, s: Sequence[Tensor], **options: bool) -> list[Tensor]:
        """Jᵀ s by one backward pass, with zeros where there is no gradient; for a batch of s, a batch of these."""
        used = [(u, x.to(u.dtype)) for u, x in zip(parts(self.scores), s, strict=True) if u.requires_grad]
        outputs, weights = zip(*used, strict=True)
        grads = torch.autograd.grad(outputs, self.params, weights, allow_unused=True, **options)
        require_dense(grads)
        batch = s[0].shape[: s[0].dim() - parts(self.scores)[0].dim()]
        return [p.new_zeros(*batch, *p.shape) if g is None else g for p, g in zip(self.params, grads, strict=True)]

    def jvp(self, d: Sequence[Tensor]) -> Scores:
        """J d, with the structure of the scores; ``d`` has one tensor per parameter.

        g(v) = Jᵀ v is linear in v, so its vjp with d is J d, whatever v is. g's graph is built once and kept.
        """
        if not self._v:
            self._record(tuple(torch.zeros_like(u) for u in parts(self.scores)))
        live = [(g, x.to(g.dtype)) for g, x in zip(self._g, d, strict=True) if g.requires_grad]
        if not live:
            return like(self.scores, tuple(torch.zeros_like(v) for v in self._v))
        outputs, moves = zip(*live, strict=True)
        with _explained():
            return like(self.scores, torch.autograd.grad(outputs, self._v, moves, True, materialize_grads=True))

    def _record(self, at: Sequence[Tensor]) -> None:
        """Build v = ``at`` and the graph of g(v) = Jᵀ v."""
        pairs = zip(parts(self.scores), at, strict=True)
        with torch.enable_grad(), _explained():
            v = tuple(x.detach().to(u.dtype, copy=True).requires_grad_() for u, x in pairs)
            self._g, self._v = tuple(self._pulled_back(v, create_graph=True)), v

    def jacobian(self, chunk: int = 64) -> Tensor:
        """J as a dense ``[m, P]`` matrix: m score entries in order, P flattened parameters. For small problems.

        ``chunk`` rows at a time are computed in one batched backward pass; where an operation of the network does not
        support that, one by one.
        """
        tensors, sizes = parts(self.scores), [u.numel() for u in parts(self.scores)]
        every = torch.eye(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
        rows = []
        for units in torch.split(every, chunk):
            pieces = zip(torch.split(units, sizes, 1), tensors, strict=True)
            rows.append(self._rows([x.reshape(len(units), *u.shape) for x, u in pieces]))
        return torch.cat(rows)

    def _rows(self, s: Sequence[Tensor]) -> Tensor:
        """Jᵀ s for a batch of s, ``[b, P]``."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # vmap warns where it would fall back to a slow loop
                grads = self._pulled_back(s, retain_graph=True, is_grads_batched=True)
        except (RuntimeError, UserWarning, NotImplementedError):
            each = [self.vjp(like(self.scores, tuple(x[j] for x in s))) for j in range(len(s[0]))]
            grads = [torch.stack(rows) for rows in zip(*each, strict=True)]
        return torch.cat([g.reshape(len(s[0]), -1) for g in grads], 1)


def leaves(scores: Scores) -> set[int]:
    """The ids of the leaf tensors that the scores' graph reaches: those that a backward pass would give a gradient."""
    found = set(_leaves(parts(scores)))
    if None in found:
        raise RuntimeError(
            "the network uses reentrant checkpointing, which hides its parameters from the graph: no solver could "
            "train them. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    return {leaf for leaf in found if leaf is not None}


def reached(value: Tensor, ids: Set[int], every: bool = True) -> Set[int]:
    """Those of the tensors with these ids to which a backward pass from ``value`` gives a gradient.

    One of them is enough if not ``every``; all where reentrant checkpointing hides parameters from the graph.

    >>> w, v = torch.ones(2, requires_grad=True), torch.ones(2)
    >>> reached((w * v).sum(), {id(w), id(v)}) == {id(w)}
    True
    """
    hits = (leaf for leaf in _leaves([value]) if leaf is None or leaf in ids)
    found = set(hits if every else islice(hits, 1))
    return ids if None in found else ids & found


def _leaves(tensors: Sequence[Tensor]) -> Iterator[int | None]:
    """The ids of the leaves behind some tensors, depth first; None for reentrant checkpointing, which hides its own."""
    yield from (id(u) for u in tensors if u.is_leaf)
    stack = [u.grad_fn for u in tensors if u.grad_fn is not None]
    seen = set(stack)
    while stack:
        node: Any = stack.pop()
        if hasattr(node, "variable"):
            yield id(node.variable)
        elif type(node).__name__ == "CheckpointFunctionBackward":
            yield None
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                stack.append(after)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn autograd's errors into what a user can do about them."""
    try:
        yield
    except RuntimeError as error:
        for known, hint in HINTS.items():
            if known in str(error):
                raise RuntimeError(f"{hint}. (autograd said: {str(error).splitlines()[0]})") from error
        raise
