"""What every kernel and every loss must know about a tensor: its type, its precision, and who is watching."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"

PLAIN = frozenset({Tensor, torch.nn.Parameter})  # exact types only: a subclass may have no memory of its own
HALF = frozenset({torch.float16, torch.bfloat16})


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are accumulated: float32 for half precision, else the dtype itself.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in HALF else dtype


def widened(x: Tensor) -> Tensor:
    """``x`` in the dtype in which it is summed; unchanged unless it has half precision.

    >>> widened(torch.ones(1, dtype=torch.float16)).dtype
    torch.float32
    """
    return x.float() if x.dtype in HALF else x


def is_dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, whatever the order of its dimensions.

    >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 3)[:, :2]), is_dense(torch.ones(3).expand(2, 3))
    (True, False, False)
    """
    expected = 1
    for stride, n in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


def are_plain(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether all tensors are stored as contiguous tensors of this dtype."""
    return (
        all(map(Tensor.is_contiguous, tensors))
        and {dtype}.issuperset(map(attrgetter("dtype"), tensors))
        and not any(map(Tensor.is_neg, tensors))  # a negative view stores the values with the opposite sign
    )


def laid_out_as(w: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` with the memory order of ``w`` and a dtype, copied only where necessary."""
    alike = x.stride() == w.stride() and x.dtype == dtype and not x.is_neg()
    return x if alike else torch.empty_like(w, dtype=dtype).copy_(x)


def chunks(sizes: Sequence[int], length: int) -> Array:
    """Tensors of these sizes cut into chunks, ``[C, 3]``: each chunk's tensor, first element and number of elements.

    >>> chunks([3, 0, 5], 4).tolist()
    [[0, 0, 3], [2, 0, 4], [2, 4, 1]]
    """
    cuts = [(i, start, min(length, n - start)) for i, n in enumerate(sizes) for start in range(0, n, length)]
    return np.array(cuts, dtype=np.int64).reshape(-1, 3)


def require_dense(gradients: Sequence[Tensor | None]) -> None:
    """Raise RuntimeError where a gradient is sparse.

    >>> require_dense([torch.ones(2), None, torch.ones(2).to_sparse()])
    Traceback (most recent call last):
    RuntimeError: a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)
    """
    if any(x is not None and x.is_sparse for x in gradients):
        raise RuntimeError("a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)")


class Alike:
    """Whether tensors have the types, dtypes, devices, layouts, shapes and strides of others, checked in one call.

    ``torch.compile`` guards its graphs in this way. Where torch has no such guards, no tensors are alike.

    >>> alike = Alike([torch.ones(2, 3)])
    >>> alike([torch.zeros(2, 3)]), alike([torch.zeros(3, 2).t()]), alike([torch.zeros(2, 3).double()])
    (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._n, self._check = len(tensors), _guards(tensors) if _guards_hold() else None

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        return self._check is not None and len(tensors) == self._n and self._check(*tensors)


def disjoint(addresses: Array, sizes: Array) -> bool:
    """Whether no two tensors of these addresses and sizes in bytes overlap.

    >>> sizes = np.array([6, 0, 4], dtype=np.uint64)
    >>> disjoint(np.array([0, 3, 6], dtype=np.uint64), sizes), disjoint(np.array([0, 9, 5], dtype=np.uint64), sizes)
    (True, False)
    """
    order = np.argsort(addresses, kind="stable")
    order = order[sizes[order] > 0]
    return not bool((addresses[order][:-1] + sizes[order][:-1] > addresses[order][1:]).any())


def in_transform() -> bool:
    """Whether a transform of ``torch.func`` is active: its tensors have no memory, and cannot be written to.

    >>> in_transform(), torch.func.vmap(lambda x: x + in_transform())(torch.zeros(2))
    (False, tensor([1., 1.]))
    """
    return not torch.compiler.is_compiling() and bool(_transforms_active())


def traced() -> bool:
    """Whether a compiler, a tracer or a transform follows every operation: to it, a loop's result is a constant.

    >>> traced()
    False
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined, unused-ignore]
        or bool(_transforms_active())
        or in_forward_mode()
        or _proxy_mode()
    )


def in_forward_mode() -> bool:
    """Whether derivatives are propagated in forward mode, which leaves no other trace.

    >>> in_forward_mode()
    False
    """
    level: int = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return level >= 0


def watched() -> bool:
    """Whether a mode, a tracer or a transform of torch has to see every operation: it would not see the loops."""
    try:
        traced = torch._C._get_tracing_state() is not None or torch._C._functorch.maybe_current_level() is not None
    except AttributeError:
        return True
    return traced or _modes() > 0


def readable(x: Tensor) -> bool:
    """Whether the host may read the values of ``x``: they are in its own memory, and nothing follows the operations.

    >>> readable(torch.ones(1)), readable(torch.ones(1, device="meta"))
    (True, False)
    """
    return not traced() and type(x) in PLAIN and x.is_cpu


def number(x: Tensor) -> float:
    """The value of a 0-dim tensor, :func:`readable` and no negative view; ``item()`` would count as a synchronisation.

    >>> number(torch.tensor(2.0)), number(torch.tensor(True))
    (2.0, 1.0)
    """
    return float(_C_TYPES[x.dtype].from_address(x.data_ptr()).value)


_C_TYPES: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.bool: ctypes.c_bool,
}


# Private functions of torch; where one is missing, the answer selects the general path.


def assert_async(holds: Tensor, message: str) -> None:
    """Raise RuntimeError unless a 0-dim tensor is true; on an accelerator the device asserts, without synchronising."""
    check = getattr(torch, "_assert_async", None)
    if check is not None:
        check(holds, message)
    elif holds.is_cpu and not bool(holds):
        raise RuntimeError(message)


def _transforms_active() -> bool:
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return True if active is None else bool(active())


def _modes() -> int:
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return 1 if count is None else int(count())


def _proxy_mode() -> bool:
    """Whether ``make_fx`` is recording: the only one of torch's dispatch modes that keeps what it sees."""
    if not _modes():
        return False
    try:
        return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    except (AttributeError, RuntimeError):
        return True


def _guards(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    make: Any = torch._C._dynamo.guards.TensorGuards
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    check: Callable[..., bool] = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


@functools.cache
def _guards_hold() -> bool:
    """Whether torch's guards exist, and detect what they must."""
    x = torch.ones(2, 2, dtype=torch.float32)  # whatever the default is: one of the others is a double
    others = x.t(), x[:1], x.double(), x.view(torch.int32), x.to("meta"), x.to_sparse(), torch._neg_view(x)
    try:
        check = _guards([x])
        return check(x.clone()) and not any(map(check, (*others, torch.nn.Parameter(x))))
    except Exception:  # whatever has changed in them
        return False
