"""What the optimizers keep and what a step allocates, according to torch's own allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Options, write
from benchmarks.step import LISTS, NESTEROV, OURS, parameters
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW


def allocated(run: Callable[[], Any]) -> tuple[int, int]:
    """Bytes on the CPU that ``run`` allocates: the peak above the start, and what is still held at the end.

    >>> def run():
    ...     run.kept = torch.ones(1000) + torch.ones(1000)        # three tensors of 4,000 bytes, one of them kept
    >>> allocated(run)
    (12000, 4000)
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    peak = held = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, held


def measure(optimizer: Any, step: Callable[[], Any]) -> dict[str, int]:
    """Bytes: ``kept`` after the first step, and the ``peak`` that a later one adds."""
    _, kept = allocated(step)
    step()
    peak, left = allocated(step)
    return {"kept": kept, "peak": peak - max(left, 0), "largest": _largest(optimizer), "all": _all(optimizer)}


def steps(shapes: list[tuple[int, ...]]) -> dict[str, tuple[Any, Callable[[], Any]]]:
    """Each optimizer and its step, on parameters of its own."""
    value = torch.tensor(0.01)
    sgd = {f"SGD {how}": torch.optim.SGD(parameters(shapes), nesterov=True, **{how: True}, **NESTEROV) for how in HOW}
    dfw = {
        name: ProxOptimizer(MultiClassHinge(), SingleStepFW(), parameters(shapes), fused=fused, **NESTEROV)
        for name, fused in OURS.items()
    }
    return {
        **{name: (o, o.step) for name, o in sgd.items()},
        **{name: (o, lambda o=o: o.step(loss=value)) for name, o in dfw.items()},
    }


HOW = ("foreach", "fused")


def _all(optimizer: Any) -> int:
    return sum(p.nbytes for p in _parameters(optimizer))


def _largest(optimizer: Any) -> int:
    return max(p.nbytes for p in _parameters(optimizer))


def _parameters(optimizer: Any) -> list[nn.Parameter]:
    return [p for g in optimizer.param_groups for p in g["params"]]


def main(options: Options) -> None:
    """Measure every optimizer on every list."""
    rows = []
    for name, shapes in {**LISTS, "one matrix (16.8 M)": [(4096, 4096)]}.items():
        for optimizer, made in steps(shapes).items():
            found = measure(*made)
            rows.append(
                {
                    "parameters": name,
                    "optimizer": optimizer,
                    "kept / all parameters": found["kept"] / found["all"],
                    "a step's own, MB": found["peak"] / 1e6,
                    "/ largest parameter": found["peak"] / found["largest"],
                    "/ all parameters": found["peak"] / found["all"],
                }
            )
    write(options, "memory", rows, "Bytes requested from torch's CPU allocator; momentum and weight decay.")
