"""FSDP2: parameters in shards, inner products over all of them; checkpoints by torch.distributed.checkpoint."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean, Kronecker
from proxsvm.solvers import BlockFW, CorrectiveFW, MultiStepFW, SingleStepFW
from tests.cases import Coupled, K, differentiate
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_ddp import BATCH, STEPS, batches, count_reductions
from tests.optimizer.test_follow import equal
from tests.parallel import message, run_on_ranks

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay-momentum": {"momentum": 0.5, "weight_decay": 1e-3},
    "clipped": {"momentum": 0.5, "weight_decay": 1e-3, "max_grad_norm": 0.3},
    "diagonal": {"momentum": 0.5, "weight_decay": 1e-3, "metric": Diagonal(), "average": 0.9, "lr": 0.2},
    "two metrics": {"momentum": 0.5, "metric": Diagonal(), "first": Euclidean(), "lr": 1.0},
    "auto": {"momentum": 0.5, "metric": Diagonal(), "average": 0.9, "lr": "auto"},
}
LEARNT = ["decay-momentum", "diagonal", "auto"]


def network(width: int = 7) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, K))  # 7 rows: uneven shards


def make(model: nn.Module, **options: Any) -> ProxOptimizer:
    """The first layer has an η of its own, and a metric if ``first`` is one."""
    lr, first = options.pop("lr", 5.0), options.pop("first", None)
    own = {} if lr == "auto" else {"lr": 0.4 * lr}
    own |= {} if first is None else {"metric": first}
    groups = [{"params": list(model[0].parameters()), **own}, {"params": list(model[2].parameters())}]
    return ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, lr=lr, **options)


def train(optimizer: ProxOptimizer, model: nn.Module, data: list[tuple[Tensor, Tensor]], rows: slice) -> list[float]:
    gammas = []
    for x, y in data:
        differentiate(optimizer, model, x[rows], y[rows])
        optimizer.step()
        gammas.append(float(optimizer.last.gamma))
    return gammas


def whole(model: nn.Module) -> list[Tensor]:
    """What is in place, gathered."""
    tensors = (*model.parameters(), *model.buffers())
    return [getattr(x, "full_tensor", lambda x=x: x)().detach().clone() for x in tensors]


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """The first layer, or group of layers, and the rest."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(next(model.children()), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank: int) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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

    for name in LEARNT:
        # HSDP: replicated over one dimension of the mesh, sharded over the other (here of size 1).
        mesh2d = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
        model = sharded(network(), mesh2d)
        gammas = train(make(model, **CASES[name]), model, batches(), half)
        results[f"{name} hsdp"] = {"gammas": gammas, "weights": whole(model)}
        # Tensor parallel: the layers are cut, every rank sees the whole batch; the last bias is replicated.
        model = parallelize_module(network(6), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        gammas = train(make(model, **CASES[name]), model, batches(), slice(None))
        results[f"{name} tensor parallel"] = {"gammas": gammas, "weights": whole(model)}

    x, y = batches()[0]
    results["several steps"] = []
    for solver in (MultiStepFW(3), CorrectiveFW(3), BlockFW()):
        criterion, model = MultiClassHinge(), sharded(network(), mesh)
        several = ProxOptimizer(criterion, solver, model.parameters())
        results["several steps"].append(message(lambda: several.step(lambda: criterion(model(x), y))))
    criterion, model = MultiClassHinge(), sharded(network(), mesh)
    alone = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), process_group=None)
    criterion(model(x), y).backward()
    results["no group"] = message(alone.step)
    for metric in (Kronecker(), Coupled()):
        options = {"params": sharded(network(), mesh).parameters(), "metric": metric}
        results[repr(metric)] = message(lambda o=options: ProxOptimizer(criterion, SingleStepFW(), **o))
    return results


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_on_ranks(work)


def assert_is(found: dict[str, Any], options: dict[str, Any], width: int = 7) -> None:
    """What a rank found is what one process finds."""
    model = network(width)
    gammas = train(make(model, **options), model, batches(), slice(None))
    assert min(gammas) < 1 or options.get("lr") == "auto"
    assert found["gammas"] == pytest.approx(gammas, abs=1e-6)
    torch.testing.assert_close(found["weights"], whole(model), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_sharded_training_is_one_process(name, ranks):
    for rank in ranks:
        assert rank[name]["gammas"] == ranks[0][name]["gammas"]
        assert_is(rank[name], CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_one_small_reduction_a_step(name, ranks):
    assert len(ranks[0][name]["reductions"]) <= STEPS * 3  # value and floor; η, or the length; the products
    assert max(ranks[0][name]["reductions"]) <= 6


@pytest.mark.parametrize(("mesh", "width"), [("hsdp", 7), ("tensor parallel", 6)])
@pytest.mark.parametrize("name", LEARNT)
def test_each_shard_counts_once(name, mesh, width, ranks):
    for rank in ranks:
        assert_is(rank[f"{name} {mesh}"], CASES[name], width)


def test_what_shards_cannot_do_is_refused(ranks):
    for rank in ranks:
        assert all("Several steps need whole parameters" in text for text in rank["several steps"])
        assert "process_group" in rank["no group"]
        for metric in (Kronecker(), Coupled()):
            assert f"{metric} needs whole parameters" in rank[repr(metric)]
            assert "metric=Diagonal()" in rank[repr(metric)]


@pytest.mark.parametrize("name", LEARNT)
def test_the_optimizers_state_dict_goes_through_torchs_own_functions(name):
    model = network()
    optimizer = make(model, **CASES[name])
    rates, before = [g["lr"] for g in optimizer.param_groups], whole(model)
    empty = get_optimizer_state_dict(model, optimizer)  # calls step() with zero gradients and lr = 0
    assert equal(before, whole(model))
    assert [g["lr"] for g in optimizer.param_groups] == rates
    assert set(empty["state"]) == {name for name, _ in model.named_parameters()}
    train(optimizer, model, batches()[:5], slice(None))
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    other = copy.deepcopy(model)
    resumed = make(other, **CASES[name])
    set_optimizer_state_dict(other, resumed, saved)
    train(optimizer, model, batches()[5:10], slice(None))
    train(resumed, other, batches()[5:10], slice(None))
    assert equal(whole(model), whole(other))
