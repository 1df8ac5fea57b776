"""Numba's cache of the compiled loops, and what happens where numba cannot be used."""

import os
import subprocess
import sys

import pytest

SOLVE = """
import logging
logging.basicConfig()
import torch
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW
torch.manual_seed(0)
problem = ProxProblem.from_features(MultiClassHinge(), torch.randn(60, 20), torch.arange(60) % 3, lr=60.0)
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
TOO_NEW = ImportError("Numba needs NumPy 2.2 or less. Got NumPy 2.4.")
BROKEN = OSError("libllvmlite.so: cannot open shared object file")
UNUSABLE = {
    "NUMBA_DISABLE_JIT": ("import os; os.environ['NUMBA_DISABLE_JIT'] = '1'", "NUMBA_DISABLE_JIT=1 keeps it from"),
    "missing": ("import sys; sys.modules['numba'] = None", r"pip install '.[fast]'"),
    "numpy is too new": (FAILING_IMPORT.format(name="numba", error=TOO_NEW), "Numba needs NumPy 2.2 or less"),
    "llvmlite is broken": (FAILING_IMPORT.format(name="llvmlite", error=BROKEN), "cannot be imported: libllvmlite.so"),
}


def run(script: str, **environment: str) -> str:
    command, environment = [sys.executable, "-c", script], {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", UNUSABLE)
def test_without_a_usable_numba_the_interpreter_solves_and_the_log_says_why(name):
    breakage, reason = UNUSABLE[name]
    said = run(breakage + SOLVE)
    assert said.count("WARNING:proxsvm._kernels.jit:loops run interpreted, about a hundred times slower") == 1
    assert reason in said


def test_a_second_process_compiles_nothing(tmp_path):
    pytest.importorskip("numba")
    files = []
    for _ in range(2):
        run(SOLVE, NUMBA_CACHE_DIR=str(tmp_path))
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")})
    assert files[0] == files[1] != {}


def test_without_a_folder_for_the_cache_it_compiles_every_time():
    pytest.importorskip("numba")
    nowhere = "import numba.core.caching as c; c.CacheImpl._locator_classes = []\n"
    assert run(nowhere + SOLVE) == ""


def test_importing_the_package_imports_no_numba():
    run("import sys, proxsvm.estimators; assert 'numba' not in sys.modules")
