"""The two sweeps over the weights: every path gives the plain formula's numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from proxsvm import update
from proxsvm.fused import FusedSweep, FusedSweeps
from proxsvm.update import Sweep, Sweeps, cut, side_by_side, zeros_like

SHAPES = [(3,), (280_000,), (2, 5), (), (130, 700), (16_384,), (16_385,)]


@pytest.fixture(autouse=True)
def short_slices(monkeypatch):
    """So that tests of several slices are quick."""
    monkeypatch.setattr(update, "SLICE", 1 << 18)


def tensors(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


PATHS = ["slices and buckets", "plain", "compiled"]


def sweep(path, w, x, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    made = (FusedSweeps(insist=True) if path == "compiled" else Sweeps()).over(w, x)
    assert isinstance(made, FusedSweep) == (path == "compiled")
    return made


@given(sizes=st.lists(st.integers(0, 400_000), max_size=8))
def test_slices_and_buckets_cover_every_element_once(sizes):
    slices, buckets = cut(sizes)
    seen = [0] * len(sizes)
    for i, start, stop in slices:
        assert start == seen[i]
        assert stop - start <= update.SLICE
        seen[i] = stop
    for at in buckets:
        assert sum(sizes[i] for i in at) <= update.BUCKET
        for i in at:
            assert seen[i] == 0
            seen[i] = sizes[i]
    assert seen == sizes


@pytest.mark.parametrize("path", PATHS)
def test_a_tensor_without_elements(path, monkeypatch):
    w = [torch.ones(0, 3)]
    made = sweep(path, w, w, monkeypatch)
    assert [p.item() for p in made.products()] == [0, 0, 0]
    apply(made, [torch.zeros(0, 3)], 0.05)


def test_many_small_tensors_make_several_buckets():
    assert [len(at) for at in cut([10_000] * 60)[1]] == [26, 26, 8]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_products_are_the_inner_products(path, dtype, rel, monkeypatch):
    w, x = ([t.to(dtype) for t in tensors(SHAPES, seed)] for seed in (0, 1))
    flat_w, flat_x = (torch.cat([t.reshape(-1) for t in s]).double() for s in (w, x))
    expected = flat_x @ flat_x, flat_w @ flat_x, flat_w @ flat_w
    for got, exact in zip(sweep(path, w, x, monkeypatch).products(), expected, strict=True):
        assert got.dtype == dtype
        assert got == pytest.approx(float(exact), rel=rel, abs=1e-4 if dtype == torch.float32 else 0)
    alone = sweep(path, w, x, monkeypatch).products(with_w=False)
    assert alone[0] == pytest.approx(float(expected[0]), rel=rel)
    assert alone[1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_tensors_do_not_overflow(dtype):
    x = [torch.full((300,), 200.0).to(dtype), torch.full((20_000,), 200.0).to(dtype)]
    assert Sweep(x, x).products()[0] == pytest.approx(20_300 * 200.0**2, rel=1e-3)
    assert Sweep(x, x).products()[0].dtype == torch.float32


def apply(sweep, z, decay, skip=False, pull=float):
    eta, gamma = 0.3, 0.6
    sweep.advance(
        z,
        push=torch.tensor(eta * gamma),
        pull=pull(decay) if decay else None,
        shrink=torch.tensor(1.0 if skip else 1 - eta * (1 - gamma) * decay) if decay else None,
        mu=0.9,
        skip=torch.tensor(float(skip), dtype=torch.float32),
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("pull", [float, torch.tensor])
@pytest.mark.parametrize("velocities", [None, "apart", "side by side"])
def test_every_path_is_the_formula(path, decay, pull, velocities, monkeypatch):
    """z ← μz − η(γr + delta), w ← w − η(r + delta) + μz with delta = γ x."""
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1) if velocities else None, tensors(SHAPES, 2)
    if velocities == "side by side":
        together = zeros_like(w)
        torch._foreach_copy_(together, z)
        z = together
    eta, gamma = 0.3, 0.6
    new_z = [0.9 * c - eta * (gamma * decay * a + gamma * b) for a, b, c in zip(w, x, z or w, strict=True)]
    new_w = [a - eta * (decay * a + gamma * b) for a, b in zip(w, x, strict=True)]
    if velocities:
        new_w = [a + 0.9 * b for a, b in zip(new_w, new_z, strict=True)]
    before = [t.clone() for t in x]
    apply(sweep(path, w, x, monkeypatch), z, decay, pull=pull)
    torch.testing.assert_close(w, new_w, atol=1e-12, rtol=0)
    if velocities:
        torch.testing.assert_close(z, new_z, atol=1e-12, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(before, x, strict=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_a_skipped_update_changes_no_bit(path, decay, monkeypatch):
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1), tensors(SHAPES, 2)
    w[0][0] = -0.0
    for t in x:
        t.view(-1)[0] = float("nan")
    before = [t.clone() for t in (*w, *z)]
    apply(sweep(path, w, x, monkeypatch), z, decay, skip=True)
    for a, b in zip(before, (*w, *z), strict=True):
        assert torch.equal(a.view(-1).view(torch.int64), b.view(-1).view(torch.int64))


@pytest.mark.parametrize("sweeps", [Sweeps, partial(FusedSweeps, insist=False)])
def test_tensors_that_are_not_contiguous_take_the_plain_path(sweeps):
    w, x = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    other = w.clone().to(memory_format=torch.channels_last)
    z, other_z = torch.zeros_like(w), torch.zeros_like(other)
    apply(sweeps().over([w], [x]), [z], 0.05)
    apply(sweeps().over([other], [x]), [other_z], 0.05)
    torch.testing.assert_close(w, other.contiguous(), atol=1e-12, rtol=0)
    torch.testing.assert_close(z, other_z.contiguous(), atol=1e-12, rtol=0)
    for a, b in zip(sweeps().over([w], [x]).products(), sweeps().over([other], [x]).products(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sweeps", [Sweeps, partial(FusedSweeps, insist=False)])
def test_other_precisions(sweeps, dtype, decay):
    w, x = ([t.to(dtype) for t in tensors(SHAPES, seed)] for seed in (0, 1))
    z = [torch.zeros_like(t) for t in w]
    expected = [
        a.double() * (1 - 0.12 * decay) - 0.18 * (b.double() + decay * a.double()) * 1.9
        for a, b in zip(w, x, strict=True)
    ]
    apply(sweeps().over(w, x), z, decay)
    tolerance = 1e-6 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close([t.double() for t in w], expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("sweeps", [Sweeps, partial(FusedSweeps, insist=False)])
def test_it_runs_on_fake_tensors(sweeps):
    with FakeTensorMode():
        w, x = tensors(SHAPES), tensors(SHAPES)
        sweep = sweeps().over(w, x)
        assert all(p.shape == () for p in sweep.products())
        apply(sweep, zeros_like(w), 0.05)


@pytest.mark.parametrize("path", PATHS)
def test_autograd_sees_that_the_weights_have_changed(path, monkeypatch):
    w = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    value = sum((p**2).sum() for p in w)
    with torch.no_grad():
        apply(sweep(path, w, tensors(SHAPES), monkeypatch), None, 0.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_sweeps_of_equal_shapes_do_not_see_each_others_copies():
    """They share the room for copies of small tensors, and products of all come before any update."""
    sweeps, shapes = Sweeps(), [(5,), (2, 3)]
    w, x = ([tensors(shapes, seed) for seed in pair] for pair in ((0, 1), (2, 3)))
    expected = [[a - 0.5 * b for a, b in zip(*pair, strict=True)] for pair in zip(w, x, strict=True)]
    both = [sweeps.over(*pair) for pair in zip(w, x, strict=True)]
    assert both[0].layout is both[1].layout
    for s in both:
        s.products()
    for s in both:
        s.advance(None, push=torch.tensor(0.5), pull=None, shrink=None, mu=0.0, skip=torch.tensor(0.0).float())
    torch.testing.assert_close(w, expected)


def test_layouts_of_ever_other_shapes_are_not_collected():
    sweeps = Sweeps()
    for n in range(1, 200):
        w = tensors([(n,), (2,)])
        sweeps.over(w, w)
    assert len(sweeps._layouts) <= 64


def test_equal_sizes_of_two_dtypes_are_two_walks():
    sweeps = FusedSweeps(insist=True)
    for dtype in (torch.float32, torch.float64):
        w = [torch.ones(10_000, dtype=dtype), torch.ones(3, dtype=dtype)]
        assert sweeps.over(w, w).products()[0] == 10_003


def test_zeros_stand_side_by_side_and_strangers_do_not():
    like = tensors([(3,), (20_000,), (2, 5)])
    zeros = zeros_like(like)
    assert [z.shape for z in zeros] == [t.shape for t in like]
    small, starts = [zeros[0], zeros[2]], [0, 3, 13]
    flat = side_by_side(small, starts)
    flat += 1
    assert zeros[2].eq(1).all()
    assert not zeros[1].any()
    assert side_by_side(small[::-1], [0, 10, 13]) is None
    assert side_by_side([t.clone() for t in small], starts) is None
    base = torch.zeros(26)  # in the same memory, but past the end of what the first tensor owns
    parts = [torch.frombuffer(base.numpy(), dtype=base.dtype, count=n, offset=8 * at) for at, n in ((0, 3), (3, 10))]
    assert side_by_side(parts, starts) is None
