"""Which kernels take a step: where possible, loops compiled by numba on the CPU or Triton's on a GPU; else torch's own.

On a CPU without numba, torch's run slice by slice; ``fused=False`` takes the path of accelerators.

Nothing above this module knows which ones run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._kernels import step_compiled as compiled
from proxsvm._kernels import step_triton as triton
from proxsvm._kernels.jit import load_numba
from proxsvm._kernels.passes import Moments, Passes, Tensors, shapes
from proxsvm._kernels.step_foreach import ForeachPasses
from proxsvm._kernels.step_slices import SlicedPasses
from proxsvm._kernels.tensors import require_dense, watched

PLANS = 64  # kept at most: if different gradients are missing at every step, none is ever reused


class StepKernels:
    """Chooses the kernels for a list of tensors, and keeps what can be reused from step to step.

    ``fused``: None compiles where that is possible, True insists on it, False never does; ``like``: a parameter.
    """

    def __init__(self, fused: bool | None = None, like: Tensor | None = None) -> None:
        self.fused = fused
        if fused:  # report now what is missing
            on_gpu = like is not None and like.device.type in triton.DEVICES
            load("triton", extra="gpu") if on_gpu else load_numba()
        self._plans: dict[object, Any] = {}
        self._last: dict[int, compiled.Plan] = {}  # of the last step, by the id of the first parameter

    def bind(self, w: Tensors, x: Tensors, moments: Moments | None = None) -> Passes:
        """The passes over parameters ``w`` and a direction ``x``, of one dtype and device; M = 1 without moments."""
        first, compiling = w[0], torch.compiler.is_compiling()
        last = None if compiling else self._last.get(id(first))
        if last and last.alike and last.alike([*w, *x]) and (self.fused or not watched()):
            again = compiled.FusedPasses(w, x, last, moments, alike=True)  # all checks still hold
            if again.obstacle() is None:
                return again
        require_dense(x)
        if self.fused is False or compiling:  # the compiler fuses on its own
            return ForeachPasses(w, x, moments)
        kind: Any = triton if first.device.type in triton.DEVICES else compiled
        obstacle = kind.obstacle(w, x)
        if obstacle is None and not self.fused and not watched() and not kind.available(first.dtype):
            return ForeachPasses(w, x, moments) if kind is triton else SlicedPasses(w, x, moments)
        if obstacle is None and (self.fused or not watched()):
            plan = self._plan(w, kind.Plan)
            made: Passes = kind.FusedPasses(w, x, plan, moments)
            obstacle = made.obstacle()
            if obstacle is None:
                if kind is compiled:
                    self._last = {**(self._last if len(self._last) < PLANS else {}), id(first): plan}
                return made
        if self.fused:
            raise RuntimeError(
                f"fused=True, but {obstacle}: {kind.TAKES}. Leave fused=None, which uses them wherever possible"
            )
        return ForeachPasses(w, x, moments)

    def _plan(self, w: Tensors, kind: Callable[[Tensors], Any]) -> Any:
        key = (w[0].dtype, w[0].device, *shapes(w))
        if key not in self._plans:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            self._plans[key] = kind(w)
        return self._plans[key]
