"""FSDP2: parameters in shards, inner products over all of them; checkpoints by torch.distributed.checkpoint."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import K
from tests.parallel import run_on_ranks
from tests.test_ddp import BATCH, STEPS, batches, count_reductions, message

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay-momentum": {"momentum": 0.5, "weight_decay": 1e-3},
    "clipped": {"momentum": 0.5, "weight_decay": 1e-3, "max_grad_norm": 0.3},
}


def network(width: int = 7) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, K))  # 7 rows: uneven shards


def make(model: nn.Module, **options: Any) -> ProxOptimizer:
    """The first layer has an η of its own."""
    groups = [{"params": list(model[0].parameters()), "lr": 2.0}, {"params": list(model[2].parameters())}]
    return ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, lr=5.0, **options)


def train(optimizer: ProxOptimizer, model: nn.Module, data: list[tuple[Tensor, Tensor]], rows: slice) -> list[float]:
    gammas = []
    for x, y in data:
        optimizer.zero_grad()
        optimizer.loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        gammas.append(float(optimizer.last.gamma))
    return gammas


def whole(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank: int, folder: str) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (2,))
    half = slice(0, BATCH // 2) if rank == 0 else slice(BATCH // 2, BATCH)
    results: dict[str, Any] = {}
    for name, options in CASES.items():
        model = sharded(network(), mesh)
        optimizer = make(model, **options)
        calls: list[int] = []
        stop = count_reductions(calls)
        gammas = train(optimizer, model, batches(), half)
        stop()
        results[name] = {"weights": whole(model), "gammas": gammas, "reductions": calls}

    # Save in mid-training, load into a new model and optimizer, go on.
    options = CASES["decay-momentum"]
    model = sharded(network(), mesh)
    optimizer = make(model, **options)
    train(optimizer, model, batches()[:20], half)
    assert all(isinstance(s["z"], DTensor) for s in optimizer.state.values())
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=folder)
    train(optimizer, model, batches()[20:], half)

    torch.manual_seed(1)
    other = sharded(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, K)), mesh)
    resumed = make(other, **options)
    initial = whole(other)
    state = {"model": get_model_state_dict(other), "optimizer": get_optimizer_state_dict(other, resumed)}
    results["untouched"] = all(torch.equal(a, b) for a, b in zip(initial, whole(other), strict=True))
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state["model"])
    set_optimizer_state_dict(other, resumed, state["optimizer"])
    train(resumed, other, batches()[20:], half)
    results["resumed"] = all(torch.equal(a, b) for a, b in zip(whole(model), whole(other), strict=True))

    # HSDP: replicated over one dimension of the mesh, sharded over the other (here of size 1).
    mesh2d = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(network(), mesh2d)
    results["hsdp"] = {"gammas": train(make(model, **options), model, batches(), half), "weights": whole(model)}

    # Tensor parallel: the layers are cut, every rank sees the whole batch; the last bias is replicated.
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(network(6), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    results["tensor parallel"] = {
        "gammas": train(make(model, **options), model, batches(), slice(None)),
        "weights": whole(model),
    }

    x, y = batches()[0]
    criterion, model = MultiClassHinge(), sharded(network(), mesh)
    several = ProxOptimizer(criterion, MultiStepFW(3), model.parameters())
    results["multi"] = message(RuntimeError, lambda: several.step(lambda: criterion(model(x), y)))
    criterion, model = MultiClassHinge(), sharded(network(), mesh)
    alone = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), process_group=None)
    criterion(model(x), y).backward()
    results["no group"] = message(RuntimeError, alone.step)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    return run_on_ranks(work, str(tmp_path_factory.mktemp("checkpoint")))


def alone(options: dict[str, Any], width: int = 7) -> tuple[list[Tensor], list[float]]:
    model = network(width)
    gammas = train(make(model, **options), model, batches(), slice(None))
    return whole(model), gammas


@pytest.mark.parametrize("name", CASES)
def test_sharded_training_is_one_process(name, ranks):
    weights, gammas = alone(CASES[name])
    assert min(gammas) < 1
    for rank in ranks:
        assert rank[name]["gammas"] == ranks[0][name]["gammas"]
        assert rank[name]["gammas"] == pytest.approx(gammas, abs=1e-6)
        for a, b in zip(rank[name]["weights"], weights, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_one_small_reduction_a_step(name, ranks):
    assert len(ranks[0][name]["reductions"]) == STEPS
    assert max(ranks[0][name]["reductions"]) <= 5


@pytest.mark.parametrize(("mesh", "width"), [("hsdp", 7), ("tensor parallel", 6)])
def test_each_shard_counts_once(mesh, width, ranks):
    weights, gammas = alone(CASES["decay-momentum"], width)
    for rank in ranks:
        assert rank[mesh]["gammas"] == pytest.approx(gammas, abs=1e-6)
        for a, b in zip(rank[mesh]["weights"], weights, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_a_distributed_checkpoint_continues_bit_for_bit(ranks):
    for rank in ranks:
        assert rank["untouched"], "get_optimizer_state_dict() moved the weights"
        assert rank["resumed"]


def test_what_shards_cannot_do_is_refused(ranks):
    for rank in ranks:
        assert "Several steps need whole parameters" in rank["multi"]
        assert "process_group" in rank["no group"]


def test_the_optimizers_state_dict_goes_through_torchs_own_functions():
    model = network()
    optimizer = make(model, **CASES["decay-momentum"])
    before = [p.clone() for p in model.parameters()]
    empty = get_optimizer_state_dict(model, optimizer)  # calls step() with zero gradients and lr = 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert [g["lr"] for g in optimizer.param_groups] == [2.0, 5.0]
    assert set(empty["state"]) == {name for name, _ in model.named_parameters()}
    train(optimizer, model, batches()[:5], slice(None))
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other = copy.deepcopy(model)
    resumed = make(other, **CASES["decay-momentum"])
    set_optimizer_state_dict(other, resumed, saved)
    train(optimizer, model, batches()[5:10], slice(None))
    train(resumed, other, batches()[5:10], slice(None))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
