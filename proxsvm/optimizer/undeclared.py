"""Terms of the loss that were not declared, found in the graph of a backward pass."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set

from torch import Tensor


def differentiated() -> Sequence[Tensor]:
    """The tensors from which the backward pass that calls a hook in this thread started; empty if unknown.

    torch does not pass them to a hook. Its function that starts the engine has them, further up the stack; the backward
    pass of a GPU has a stack of its own.
    """
    frame = sys._getframe()
    while frame.f_code.co_name != "_engine_run_backward":
        if frame.f_back is None:
            return ()
        frame = frame.f_back
    return tuple(frame.f_locals.get("t_outputs", ()))


def reaches_past(tensors: Sequence[Tensor], leaves: Set[int], params: Set[int]) -> bool:
    """Whether gradients of ``tensors`` reach a parameter without passing through a product with one of the ``leaves``.

    >>> import torch
    >>> w, one = torch.ones(2, requires_grad=True), torch.ones((), requires_grad=True)
    >>> value, penalty = w.sum() * one, w.square().sum()
    >>> [reaches_past([x], {id(one)}, {id(w)}) for x in (value / 4, value + penalty)]
    [False, True]
    """
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(stack)
    while stack:
        after = [node for node, _ in stack.pop().next_functions if node is not None]
        ids = [id(getattr(node, "variable", None)) for node in after]
        if not leaves.isdisjoint(ids):
            continue  # the value of a watched module, or a compiled graph that computes it
        if not params.isdisjoint(ids):
            return True
        stack += [node for node in after if node not in seen]
        seen.update(after)
    return False
