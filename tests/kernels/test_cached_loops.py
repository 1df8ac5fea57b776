"""A loop that was just compiled and the same loop from numba's files give the same bits: a run may be resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba")

STEPS = """
import itertools, torch
from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW

def show(*what, tensors):
    print(*what, [x.sum().item().hex() for t in tensors for x in (t.detach().double().flatten(), t.double().square())])

kinds = (Euclidean(), Diagonal()), (0.1, "auto"), (0.0, 0.9), (None, 0.9)
for dtype in (torch.float32, torch.float64):
    torch.manual_seed(0)
    for loss, (n, K) in itertools.product((MultiClassHinge(smooth=True), CrossEntropy()), ((12, 4), (300, 1000))):
        scores = (3 * torch.randn(n, K, dtype=dtype)).requires_grad_()
        value = loss(scores, torch.arange(n) % K)
        value.backward()
        show(dtype, loss, n, K, tensors=[value, scores.grad])
    for metric, lr, momentum, average in itertools.product(*kinds):
        w = torch.nn.Parameter(torch.randn(1000, dtype=dtype))
        optimizer = ProxOptimizer(
            CrossEntropy(), SingleStepFW(), [w], lr, momentum, 0.01, metric=metric, average=average, fused=True
        )
        for _ in range(5):
            w.grad = torch.randn_like(w)
            optimizer.step(loss=0.7)
        show(dtype, metric, lr, momentum, average, tensors=[w, *optimizer.state[w].values()])
"""


# Only a process that has compiled the loops can show their code.
CODE = """
import torch
from proxsvm._kernels import class_entries, step_loops

loops = [step_loops.compiled(*key) for key in step_loops.SOURCES]
loops += [loop for dtype in class_entries.ENTRIES for loop in class_entries.compiled(dtype)]
code = [x if isinstance(x, str) else "".join(x.values()) for x in (loop.inspect_llvm() for loop in loops)]
functions = [line for text in code for line in text.splitlines() if line.startswith("define ")]
outside = [line for line in functions if "linkonce" in line and "proxsvm" in line]
assert len(functions) > len(loops)
assert not outside, outside
"""


def test_from_a_file_the_loops_give_the_same_bits(tmp_path):
    def run(script):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")}

    compiled, files = run(STEPS + CODE)
    loaded, same_files = run(STEPS)
    assert len(files) == 20  # ten loops, with an index each
    assert files == same_files
    assert loaded == compiled


def test_a_loop_is_not_taken_from_the_files_of_other_sources(tmp_path):
    from proxsvm._kernels import native, step_loops

    (tmp_path / "loops.py").write_text("x = 1")
    before = native.digest(tmp_path)
    (tmp_path / "loops.py").write_text("x = 2")
    assert native.digest(tmp_path) != before
    loop = step_loops.compiled("products", torch.float32)
    folder = Path(step_loops.__file__).parent
    assert native.digest(folder) in loop._cache._impl.filename_base
