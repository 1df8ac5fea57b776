"""The kernels for a GPU, without one: Triton's interpreter runs them, and its compiler makes PTX of them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from proxsvm._kernels import class_rows, class_triton, step_triton
from proxsvm._kernels.passes import Moments, Sums, Update
from proxsvm._kernels.step import StepKernels
from proxsvm._kernels.tensors import accumulator

triton = pytest.importorskip("triton")
ASTSource = triton.compiler.ASTSource
NEWER = "constexprs" in inspect.signature(ASTSource).parameters  # than Triton 3.2, that of torch 2.6
FOLDER = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")


@pytest.mark.parametrize("file", ["interpreted_step.py", "interpreted_scalars.py", "interpreted_criterion.py"])
def test_the_interpreter_gives_the_numbers_of_the_plain_twin(file):
    """In a process of its own: the interpreter is chosen before triton is imported."""
    old = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"  # NumPy's, about Triton 3.2's interpreter
    command = [sys.executable, "-m", "pytest", "-q", "-W", old, "-p", "no:cacheprovider", str(FOLDER / file)]
    done = subprocess.run(
        command,
        cwd=FOLDER.parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 40


# PTX.

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
}


def signature_of(kernel, args):
    """The types of the arguments that a kernel was called with, and its constants."""
    signature, constants = {}, {}
    for parameter, value in zip(kernel.params, args, strict=True):
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
        elif parameter.is_constexpr or value is None or value == 1:  # Triton makes a constant of a 1
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
    return signature, constants


def ptx(kernel, args, capability):
    """PTX of a kernel for the arguments that it was called with."""
    from triton.backends.compiler import GPUTarget

    signature, constants = signature_of(kernel, args)
    if NEWER:
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    else:
        typed = {name: kind for name, kind in signature.items() if name not in constants}
        source = ASTSource(fn=kernel, signature=typed, constants=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm


class Recorder:
    """Stands for a kernel, and keeps the arguments of its launch."""

    def __getitem__(self, grid):
        self.grid = grid
        return self

    def __call__(self, *args):
        self.args = args


def launches(monkeypatch, dtype, moments, everything, sizes=(5, 70_000)):
    """Each kernel of a step with the arguments that it is launched with."""
    from proxsvm._kernels import step_triton_kernels as kernels

    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cpu"}))
    found = {name: (getattr(kernels, name), Recorder()) for name in ("products", "advance")}
    for name, (_, recorder) in found.items():
        monkeypatch.setattr(kernels, name, recorder)
    wide = accumulator(dtype)
    w, x, z, start = ([torch.ones(n, dtype=dtype) for n in sizes] for _ in range(4))
    average, v = ([t.to(wide) for t in w] for _ in range(2))
    scale = torch.ones((), dtype=wide) if everything else 1.0
    passes = StepKernels(True).bind(
        w, x, Moments(v, 0.99, torch.ones((), dtype=wide), 1e-8, scale) if moments else None
    )
    gamma, skip = torch.ones((), dtype=wide), torch.tensor(False)
    passes.products(with_w=everything, start=start if everything else None)
    if everything:
        passes.advance(z, average, Update(gamma, gamma, gamma, 0.9, gamma, skip))
    else:
        passes.advance(None, None, Update(gamma, skip=skip))
    assert all(recorder.grid == (sum(-(-n // step_triton.CHUNK) for n in sizes),) for _, recorder in found.values())
    return [(kernel, recorder.args) for kernel, recorder in found.values()]


def scalar_launches(monkeypatch, dtype, everything):
    """The same for the formulas between the passes."""
    from proxsvm._kernels import scalars_triton as formulas

    names = "weigh", "climb", "judge", "combine", "correct"
    found = {name: (getattr(formulas, name), Recorder()) for name in names}
    for name, (_, recorder) in found.items():
        monkeypatch.setattr(formulas, name, recorder)
    one, skip = torch.ones((), dtype=dtype), torch.tensor(False)
    if everything:
        formulas.weighed(Sums(one, one, one), one, 0.01)
        formulas.climbed(one, one, one, one, one)
        formulas.verdict(one, one, skip, torch.tensor(0))
        formulas.coefficients(one, 0.01, one, one, skip, 0.9, 0.99, one, True)
    else:
        formulas.weighed(Sums(one), 0.1, 0.0)
        formulas.climbed(0.0, 0.0, one, 0.0, one)
        formulas.verdict(one, 0.5, False, None)
        formulas.coefficients(0.1, 0.0, one, 1.0, False, 0.0, None, None, False)
    formulas.bias_correction(-0.01, one, dtype)
    return [(kernel, recorder.args) for kernel, recorder in found.values()]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("everything", [False, True], ids=["least", "all"])
def test_the_formulas_between_them_compile_for_real_gpus(monkeypatch, capability, dtype, everything):
    for kernel, args in scalar_launches(monkeypatch, dtype, everything):
        assert f".target sm_{capability}" in ptx(kernel, args, capability)["ptx"]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("moments", [False, True], ids=["Euclidean", "diagonal"])
@pytest.mark.parametrize("everything", [False, True], ids=["least", "all"])
def test_they_compile_for_real_gpus(monkeypatch, capability, dtype, moments, everything):
    for kernel, args in launches(monkeypatch, dtype, moments, everything):
        found = ptx(kernel, args, capability)
        assert f".target sm_{capability}" in found["ptx"]
        assert "ld.global" in found["ptx"]
        assert found["cubin"]
        assert ("sqrt" in found["ptx"]) == moments


def test_one_tensor_compiles_too(monkeypatch):
    for kernel, args in launches(monkeypatch, torch.float32, True, True, sizes=(5,)):
        assert ptx(kernel, args, 90)["cubin"]


def test_a_scalar_of_the_host_is_a_constant_on_the_device():
    """Copying it would wait for the device."""
    like, eta = torch.zeros((), device="meta"), torch.tensor(0.1, dtype=torch.float64)
    assert step_triton.scalar(eta, like) == step_triton.scalar(0.1, like) == (step_triton.bits(0.1), None)
    assert step_triton.scalar(like, like)[0] == step_triton.bits(1.0)


@pytest.mark.parametrize("everything", [False, True], ids=["least", "all"])
def test_tritons_launcher_finds_the_types_that_were_compiled(monkeypatch, everything):
    """A constant of 0 or 2 is as long as any other: one kernel for all learning rates."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    bind = getattr(triton.runtime.jit, "create_function_from_signature", None)
    if bind is None or not NEWER:
        pytest.skip("another Triton binds arguments in another way")
    backend = make_backend(GPUTarget("cuda", 90, 32))
    made = launches(monkeypatch, torch.float32, True, everything)
    for kernel, args in made + scalar_launches(monkeypatch, torch.float32, everything):
        _, found, _ = bind(kernel.signature, kernel.params, backend)(*args)
        assert [kind for kind, *_ in found] == list(signature_of(kernel, args)[0].values())


class Sound(Recorder):
    """The forward kernel of the criterion, which says that all classes exist."""

    def __call__(self, *args):
        super().__call__(*args)
        args[6].fill_(1)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", class_rows.KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_criterion_compiles_for_real_gpus(monkeypatch, capability, dtype, kind, weighted):
    from proxsvm._kernels import class_triton_kernels as kernels

    both = [(kernels.forward, Sound()), (kernels.backward, Recorder())]
    for kernel, recorder in both:
        monkeypatch.setattr(kernels, kernel.__name__, recorder)
    scores, target = torch.zeros(6, 100, dtype=dtype, requires_grad=True), torch.zeros(6, dtype=torch.int64)
    weight = torch.ones(100, dtype=dtype) if weighted else None
    if weighted and dtype == torch.float64:
        scores, weight = scores.detach()[:, :1].contiguous().requires_grad_(), weight[:1]  # one class
    class_triton.value(kind, scores, target, weight, -100, not weighted, None).backward()
    for kernel, recorder in both:
        assert recorder.grid == (6,)
        found = ptx(kernel, recorder.args, capability)
        assert f".target sm_{capability}" in found["ptx"]
        assert found["cubin"]


# Which kernels are chosen.


def test_a_step_is_two_launches_however_many_tensors(monkeypatch):
    from proxsvm._kernels import step_triton_kernels as kernels

    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cpu"}))
    launched = []

    class Count(Recorder):
        def __call__(self, *args):
            launched.append(self.grid)

    for name in ("products", "advance"):
        monkeypatch.setattr(kernels, name, Count())
    w = [torch.ones(3) for _ in range(200)]
    passes = StepKernels().bind(w, w)
    passes.products()
    passes.advance(w, w, Update(0.1))
    assert launched == [(200,), (200,)]


def test_without_triton_torchs_operations_are_used(monkeypatch):
    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "proxsvm._kernels.step_triton_kernels", raising=False)
    step_triton.available.cache_clear()
    try:
        w = [torch.ones(3)]
        assert not isinstance(StepKernels().bind(w, w), step_triton.FusedPasses)
        with pytest.raises(ModuleNotFoundError, match=r"needs 'triton'.*\[gpu\]"):
            StepKernels(True, nn.Parameter(w[0]))
    finally:
        step_triton.available.cache_clear()
