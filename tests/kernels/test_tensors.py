"""Private functions of torch that the kernels and losses use: where one is missing, the general path is taken."""

from __future__ import annotations

import pytest
import torch

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
