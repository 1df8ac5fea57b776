"""Numba's cache of the compiled loops, and what happens where numba cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging, os, sys
logging.basicConfig()
import numpy as np, torch
from proxsvm import ProxOptimizer, ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import BlockFW, SingleStepFW

def step(fused=None):
    torch.set_num_threads(2)
    # enough for two threads; from NumPy, because torch's own OpenMP does not survive a fork
    p, grad = (torch.from_numpy(np.full(4_300_000, x, dtype=np.float32)) for x in (1.0, 0.01))
    p = torch.nn.Parameter(p)
    p.grad = grad
    options = {"lr": 0.1, "metric": Euclidean(), "memory": 0.0, "average": None}
    ProxOptimizer(MultiClassHinge(), SingleStepFW(), [p], fused=fused, **options).step(loss=0.1)
    return p.tolist()[::1000]
"""
SOLVE = """
torch.manual_seed(0)
problem = ProxProblem.from_features(MultiClassHinge(), torch.randn(20, 5), torch.arange(20) % 3, lr=20.0)
point = BlockFW(tol=1e-3).solve(problem)
assert problem.relative_gap(point) <= 1e-3
"""
FAILING_IMPORT = """
import sys, importlib.abc
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise {error!r}
sys.meta_path.insert(0, Broken())
"""
BROKEN = OSError("libllvmlite.so: cannot open shared object file")
UNUSABLE = {
    "NUMBA_DISABLE_JIT": ("import os; os.environ['NUMBA_DISABLE_JIT'] = '1'", "NUMBA_DISABLE_JIT=1 keeps it from"),
    "missing": ("import sys; sys.modules['numba'] = None", r"pip install '.[fast]'"),
    "llvmlite is broken": (FAILING_IMPORT.format(name="llvmlite", error=BROKEN), "cannot be imported: libllvmlite.so"),
}


def run(script: str, cache: Path | None = None) -> str:
    environment = os.environ if cache is None else {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", UNUSABLE)
def test_without_a_usable_numba_the_interpreter_solves_and_the_log_says_why(name):
    breakage, reason = UNUSABLE[name]
    said = run(breakage + SCRIPT + SOLVE + "assert step() == step(False)")
    assert said.count("WARNING:proxsvm._kernels.jit:loops run interpreted, about a hundred times slower") == 1
    assert reason in said


def test_a_second_process_compiles_nothing_and_importing_the_package_imports_no_numba(tmp_path):
    pytest.importorskip("numba")
    files = []
    for _ in range(2):
        run("import sys, proxsvm.estimators; assert 'numba' not in sys.modules" + SCRIPT + SOLVE, tmp_path)
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")})
    assert files[0] == files[1] != {}


def test_without_a_folder_for_the_cache_it_compiles_every_time():
    pytest.importorskip("numba")
    nowhere = "import numba.core.caching as c; c.CacheImpl._locator_classes = []\n"
    assert run(nowhere + SCRIPT + "assert step() == step(True) == step(False)") == ""


FORK = """
step()
child = os.fork()
if child == 0:
    step(True)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_the_loops_run_in_a_forked_process():
    run(SCRIPT + FORK)
