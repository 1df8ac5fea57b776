"""The two sweeps over the weights: every path gives the plain formula's numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from proxsvm import update
from proxsvm.update import Sweep, layout

SHAPES = [(3,), (280_000,), (2, 5), (), (130, 700), (16_384,), (16_385,)]


def tensors(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@given(sizes=st.lists(st.integers(0, 200_000), max_size=8))
def test_the_blocks_cover_every_element_once(sizes):
    lists = [torch.empty(size) for size in sizes]
    seen = [0] * len(sizes)
    for block in layout(lists):
        for i in block.at:
            seen[i] += block.stop - block.start if block.stop else sizes[i]
        assert sum(sizes[i] for i in block.at) <= update.BUCKET or len(block.at) == 1
    assert seen == sizes


def test_many_small_tensors_make_several_buckets():
    assert len(list(layout([torch.empty(10_000) for _ in range(250)]))) == 3


def test_products_are_the_inner_products():
    w, x = tensors(SHAPES), tensors(SHAPES, 1)
    flat_w, flat_x = (torch.cat([t.reshape(-1) for t in s]) for s in (w, x))
    for got, expected in zip(Sweep(w, x).products(), (flat_x @ flat_x, flat_w @ flat_x, flat_w @ flat_w), strict=True):
        assert got == pytest.approx(float(expected), rel=1e-12)
    assert Sweep(w, x).products(with_w=False)[1] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_tensors_do_not_overflow(dtype):
    x = [torch.full((300,), 200.0).to(dtype), torch.full((20_000,), 200.0).to(dtype)]
    assert Sweep(x, x).products()[0] == pytest.approx(20_300 * 200.0**2, rel=1e-3)
    assert Sweep(x, x).products()[0].dtype == torch.float32


def apply(path, w, z, x, decay, skip, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    eta, gamma = 0.3, 0.6
    Sweep(w, x).advance(
        z,
        push=torch.tensor(eta * gamma),
        pull=torch.tensor(eta * gamma * decay) if decay else None,
        shrink=torch.tensor(1.0 if skip else 1 - eta * (1 - gamma) * decay) if decay else None,
        mu=0.9,
        skip=torch.tensor(float(skip), dtype=torch.float32),
    )


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [False, True])
def test_every_path_is_the_formula(path, decay, momentum, monkeypatch):
    """z ← μz − η(γr + delta), w ← w − η(r + delta) + μz with delta = γ x."""
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1) if momentum else None, tensors(SHAPES, 2)
    eta, gamma = 0.3, 0.6
    new_z = [0.9 * c - eta * (gamma * decay * a + gamma * b) for a, b, c in zip(w, x, z or w, strict=True)]
    new_w = [a - eta * (decay * a + gamma * b) for a, b in zip(w, x, strict=True)]
    if momentum:
        new_w = [a + 0.9 * b for a, b in zip(new_w, new_z, strict=True)]
    before = [t.clone() for t in x]
    apply(path, w, z, x, decay, False, monkeypatch)
    torch.testing.assert_close(w, new_w, atol=1e-12, rtol=0)
    if momentum:
        torch.testing.assert_close(z, new_z, atol=1e-12, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(before, x, strict=True))


@pytest.mark.parametrize("path", ["fused", "plain"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_a_skipped_update_changes_no_bit(path, decay, monkeypatch):
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1), tensors(SHAPES, 2)
    w[0][0] = -0.0
    for t in x:
        t.view(-1)[0] = float("nan")
    before = [t.clone() for t in (*w, *z)]
    apply(path, w, z, x, decay, True, monkeypatch)
    for a, b in zip(before, (*w, *z), strict=True):
        assert torch.equal(a.view(-1).view(torch.int64), b.view(-1).view(torch.int64))


def test_tensors_that_are_not_contiguous_take_the_plain_path(monkeypatch):
    w, x = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    other = w.clone().to(memory_format=torch.channels_last)
    z, other_z = torch.zeros_like(w), torch.zeros_like(other)
    apply("fused", [w], [z], [x], 0.05, False, monkeypatch)
    apply("fused", [other], [other_z], [x], 0.05, False, monkeypatch)
    torch.testing.assert_close(w, other.contiguous(), atol=1e-12, rtol=0)
    torch.testing.assert_close(z, other_z.contiguous(), atol=1e-12, rtol=0)
    for a, b in zip(Sweep([w], [x]).products(), Sweep([other], [x]).products(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_precisions(dtype, monkeypatch):
    w, x = ([t.to(dtype) for t in tensors(SHAPES, seed)] for seed in (0, 1))
    z = [torch.zeros_like(t) for t in w]
    expected = [a.double() - 0.18 * b.double() * 1.9 for a, b in zip(w, x, strict=True)]
    apply("fused", w, z, x, 0.0, False, monkeypatch)
    tolerance = 1e-6 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close([t.double() for t in w], expected, atol=tolerance, rtol=tolerance)


def test_it_runs_on_fake_tensors(monkeypatch):
    with FakeTensorMode():
        w, x = tensors(SHAPES), tensors(SHAPES)
        assert all(p.shape == () for p in Sweep(w, x).products())
        apply("fused", w, [torch.zeros_like(t) for t in w], x, 0.05, False, monkeypatch)


@pytest.mark.parametrize("path", ["fused", "plain"])
def test_autograd_sees_that_the_weights_have_changed(path, monkeypatch):
    w = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    value = sum((p**2).sum() for p in w)
    with torch.no_grad():
        apply(path, w, None, tensors(SHAPES), 0.0, False, monkeypatch)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()
