"""Private functions of torch that the kernels and losses use: where one is missing, the general path is taken."""

from __future__ import annotations

import pytest
import torch

from proxsvm._kernels import tensors
from proxsvm._kernels.tensors import assert_async, watched


@pytest.mark.parametrize("missing", [False, True])
def test_an_assertion_raises_on_the_host_with_and_without_torchs_own(missing, monkeypatch):
    if missing:
        monkeypatch.delattr(torch, "_assert_async")
    assert_async(torch.tensor(True), "fine")
    with pytest.raises(RuntimeError, match="it does not hold"):
        assert_async(torch.tensor(False), "it does not hold")


@pytest.mark.parametrize("name", ["_get_tracing_state", "_functorch", "_len_torch_dispatch_stack"])
def test_what_cannot_be_known_is_taken_for_watched(name, monkeypatch):
    assert not watched()
    monkeypatch.delattr(torch._C, name)
    assert watched()


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_tensors_are_alike_whatever_the_default_dtype_is(default):
    before = torch.get_default_dtype()
    tensors._guards_hold.cache_clear()
    try:
        torch.set_default_dtype(default)
        assert tensors.Alike([torch.ones(2)])([torch.zeros(2)])
    finally:
        torch.set_default_dtype(before)
