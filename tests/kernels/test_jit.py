"""One source for two ways to run it, and what happens where numba cannot be used."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from proxsvm._kernels import jit
from proxsvm.solvers import BlockFW

SOLVE = """
import logging
logging.basicConfig(level=logging.DEBUG)
import torch
from proxsvm import ProxProblem
from proxsvm._kernels.step import StepKernels
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW
torch.manual_seed(0)
problem = ProxProblem.from_features(MultiClassHinge(), torch.randn(600, 500), torch.arange(600) % 3, lr=600.0)
point = BlockFW(tol=1e-3, max_passes=2).solve(problem)
assert problem.dual(point) > 0.0
for asked in (lambda: BlockFW(compiled=True).solve(problem), lambda: StepKernels(fused=True)):
    try:
        asked()
    except ImportError as error:
        print("ImportError:", error)
"""
UNUSABLE = {
    "NUMBA_DISABLE_JIT": ("import os; os.environ['NUMBA_DISABLE_JIT'] = '1'", "NUMBA_DISABLE_JIT=1 keeps it from"),
    "missing": ("import sys; sys.modules['numba'] = None", r"pip install '.[fast]'"),
    "numpy is too new": (
        """
import sys, importlib.abc
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise ImportError("Numba needs NumPy 2.2 or less. Got NumPy 2.4.")
sys.meta_path.insert(0, Broken())
""",
        "Numba needs NumPy 2.2 or less",
    ),
    "llvmlite is broken": (
        """
import sys, importlib.abc
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "llvmlite":
            raise OSError("libllvmlite.so: cannot open shared object file")
sys.meta_path.insert(0, Broken())
""",
        "cannot be imported: libllvmlite.so",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_without_a_usable_numba_the_interpreter_solves_and_the_log_says_why(name):
    breakage, reason = UNUSABLE[name]
    done = subprocess.run([sys.executable, "-c", breakage + SOLVE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "DEBUG:proxsvm._kernels.jit:loops run interpreted, which is slower" in done.stderr
    assert reason in done.stderr
    assert done.stdout.count("ImportError:") == 2  # asked for, it says what is wrong
    assert done.stdout.count(reason) == 2


def test_compiled_functions_call_each_other_and_the_later_module_replaces():
    pytest.importorskip("numba")
    first, second = ModuleType("first"), ModuleType("second")
    exec("def leaf(x): return x[0]\ndef top(x): return leaf(x) + 1", vars(first))
    exec("def leaf(x):\n    total = 0.0\n    for a in x: total += a\n    return total", vars(second))
    loops = jit.compiled(first, second)
    assert loops.top(np.ones(5)) == 6.0
    assert first.top(np.ones(5)) == 2.0  # the module itself is as it was
    assert loops.top.signatures  # and it was compiled


def test_the_choice_follows_the_work_and_numba(monkeypatch):
    monkeypatch.setattr(jit, "has_numba", lambda: True)
    assert BlockFW()._compiled(2_000_000)
    assert not BlockFW()._compiled(10)
    assert BlockFW(compiled=True)._compiled(10)
    monkeypatch.setattr(jit, "has_numba", lambda: False)
    assert not BlockFW()._compiled(2_000_000)
