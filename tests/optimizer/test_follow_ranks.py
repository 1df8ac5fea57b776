"""Following on two ranks: DDP and FSDP2 evaluate and save the averages, and distributed checkpoints resume."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from proxsvm import follow, refresh_batch_norm
from proxsvm.metrics import Diagonal
from tests.cases import differentiate
from tests.optimizer.test_averages import make, reference
from tests.optimizer.test_follow import Net, equal
from tests.optimizer.test_fsdp import sharded, whole
from tests.optimizer.test_optimizer import batches
from tests.parallel import run_on_ranks

KINDS = ["ddp", "fsdp2", "hsdp"]


def train(model: nn.Module, optimizer: Any, rank: int, start: int, end: int, after: Any = lambda: None) -> None:
    for x, y in batches(end, n=12)[start:]:
        differentiate(optimizer, model, x.chunk(2)[rank], y.chunk(2)[rank])
        optimizer.step()
        after()


def over_ranks(model: nn.Module, hybrid: bool = False) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicate", "shard") if hybrid else None
    return sharded(model, init_device_mesh("cpu", (2, 1) if hybrid else (2,), mesh_dim_names=names))


def on_rank(rank: int, kind: str) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    plain = Net()
    expected, model = reference(plain), copy.deepcopy(plain)
    wrapped = DistributedDataParallel(model) if kind == "ddp" else over_ranks(model, kind == "hsdp")
    optimizer = make(model)
    wrapped(batches(1, n=12)[0][0])  # FSDP2 keeps gathered copies of what its root holds
    for here, there in zip(model.buffers(), plain.buffers(), strict=True):
        here.copy_(there)
    follow(wrapped, optimizer)

    def mirror() -> None:
        for p, w in zip((*plain.parameters(), *plain.buffers()), whole(wrapped), strict=True):
            p.data.copy_(w)
        expected.update_parameters(plain)

    train(wrapped, optimizer, rank, 0, 30, mirror)
    results: dict[str, Any] = {"expected": whole(expected.module)}
    x = batches(1, n=12)[0][0]
    for turn in ("first", "second"):
        weights = whole(wrapped)
        wrapped.eval()
        results[turn] = whole(wrapped)
        with torch.no_grad():
            results[f"{turn} scores"] = wrapped(x), expected.module.eval()(x).detach()
        wrapped.train()
        results[f"{turn} weights"] = equal(whole(wrapped)[:6], weights[:6])
    refresh_batch_norm(wrapped, [x])
    results["refreshed"] = equal(whole(wrapped)[:6], weights[:6])
    return results


def checkpoints(rank: int, folder: str) -> dict[str, Any]:
    """torch.distributed.checkpoint in both modes, resumed before and after follow()."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as of

    results: dict[str, Any] = {}
    for mode, options in (("train", {}), ("eval", {"metric": Diagonal(), "lr": "auto"})):
        torch.manual_seed(0)
        model = over_ranks(Net())
        optimizer = make(model, follow=model, **options)
        train(model, optimizer, rank, 0, 5)
        averages = whole(model.eval())
        getattr(model, mode)()
        gathered = of.get_model_state_dict(model, options=of.StateDictOptions(full_state_dict=True))
        names = [n for n, _ in (*model.named_parameters(), *model.named_buffers())]
        results[f"{mode}, gathered"] = equal([gathered[n] for n in names], averages)
        states = dict(zip(("model", "optimizer"), of.get_state_dict(model, optimizer), strict=True))
        dcp.save(states, checkpoint_id=f"{folder}/{mode}")
        train(model.train(), optimizer, rank, 5, 8)

        torch.manual_seed(1)
        other = over_ranks(Net())
        resumed = make(other, follow=other, **options)
        states = dict(zip(("model", "optimizer"), of.get_state_dict(other, resumed), strict=True))
        dcp.load(states, checkpoint_id=f"{folder}/{mode}")
        of.set_state_dict(other, resumed, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        train(other.train(), resumed, rank, 5, 8)
        for kind, state in (("weights", "train"), ("averages", "eval")):
            pair = [whole(getattr(m, state)()) for m in (other, model)]
            results[f"{mode}, {kind}"] = equal(pair[0][:6], pair[1][:6])
            results[f"{mode}, {kind}, statistics"] = equal(pair[0][6:], pair[1][6:])
    return results


def work(rank: int, folder: str) -> dict[str, Any]:
    return {**{kind: on_rank(rank, kind) for kind in KINDS}, "checkpoints": checkpoints(rank, folder)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    return run_on_ranks(work, str(tmp_path_factory.mktemp("checkpoint")))


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_evaluate_the_averages(kind, ranks):
    for rank, results in enumerate(ranks):
        found = results[kind]
        for turn in ("first", "second"):
            # DDP gives every rank the statistics of rank 0 with the next call
            tensors = zip(found[turn], found["expected"], strict=True)
            for a, b in list(tensors)[: 6 if rank and kind == "ddp" else 9]:
                torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
            if rank == 0 or kind != "ddp":
                torch.testing.assert_close(*found[f"{turn} scores"], atol=1e-12, rtol=0)
            assert found[f"{turn} weights"]
        assert found["refreshed"]


def test_distributed_checkpoints_of_either_mode_resume_bit_for_bit(ranks):
    assert len(ranks[0]["checkpoints"]) == 10
    for what in ranks[0]["checkpoints"]:
        found = [rank["checkpoints"][what] for rank in ranks]
        assert any(found) if "statistics" in what else all(found), what  # every rank has its own: torch saves one
