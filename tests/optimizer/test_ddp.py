"""Distributed data parallel: two ranks on halves of a batch are one process on the whole."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from proxsvm import DualPoint, ProxProblem
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Kronecker
from proxsvm.solvers import BlockFW, CorrectiveFW, DualSolver, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import K, OracleOnly, differentiate, mlp, vector
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer import test_optimizer
from tests.parallel import message, run_on_ranks

STEPS, BATCH, SINGLE, HINGE = 15, 8, SingleStepFW(), MultiClassHinge()


@dataclass(frozen=True)
class Case:
    """How the steps are taken, and how a batch is cut: the rows of rank 0, the rest being rank 1's."""

    name: str
    solver: DualSolver = SINGLE
    smooth: bool = False
    rows: int = BATCH // 2
    micro: int = 1
    closure: bool = False
    lr: Any = 5.0
    options: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[], ConvexLoss] | None = None
    steps: int = STEPS

    def __repr__(self) -> str:
        return self.name


MEMORY = {"metric": Diagonal(), "memory": 0.9}
CASES = [
    Case("single"),
    Case("single-smooth", smooth=True),
    Case("single-closure", closure=True),
    Case("single-clipped", options={"max_grad_norm": 0.3}),
    Case("uneven", rows=6),
    Case("no-sync", micro=2),
    Case("multi", MultiStepFW(4, tol=0.0), closure=True),
    Case("multi-tol", MultiStepFW(6, tol=0.1), closure=True),
    Case("multi-uneven", MultiStepFW(4, tol=0.0), closure=True, rows=5),
    # A few steps: these solvers end in a kink of P, where the last digit of a sum decides on the next network.
    Case("corrective", CorrectiveFW(5, tol=1e-9), closure=True, steps=4),
    Case("corrective-forgets", CorrectiveFW(9, tol=0.0, memory=3), closure=True, rows=6, steps=4),
    Case("corrective-oracle", CorrectiveFW(4, tol=0.05), closure=True, loss=lambda: OracleOnly(HINGE), steps=4),
    Case("corrective-memory", CorrectiveFW(4), lr=0.2, closure=True, options=MEMORY, steps=4),
    Case("block", BlockFW(tol=1e-12), closure=True, rows=5, steps=4),
    Case("block-smooth-loss", BlockFW(tol=1e-13), closure=True, loss=CrossEntropy, steps=4),
    Case("block-memory", BlockFW(tol=1e-12), lr=0.2, closure=True, options=MEMORY, steps=4),
    Case("diagonal", lr=0.2, options={"metric": Diagonal(), "average": 0.9}),
    Case("diagonal-multi", MultiStepFW(4, tol=0.0), lr=0.2, closure=True, options={"metric": Diagonal()}),
    Case("diagonal-auto", lr="auto", options={"metric": Diagonal(), "average": 0.9}),
    Case("auto", lr="auto", smooth=True),
    Case("lower-bound", loss=lambda: CrossEntropy(label_smoothing=0.2), lr=20.0),
    Case("lower-bound-closure", loss=lambda: CrossEntropy(label_smoothing=0.2), closure=True, rows=6),
]


batches = functools.partial(test_optimizer.batches, STEPS, BATCH)


def make(case: Case, model: nn.Module) -> ProxOptimizer:
    loss = MultiClassHinge(smooth=case.smooth) if case.loss is None else case.loss()
    momentum = 0.0 if "memory" in case.options else 0.5
    return ProxOptimizer(loss, case.solver, model.parameters(), case.lr, momentum, 1e-3, **case.options)


def train_alone(case: Case) -> tuple[Tensor, list[float]]:
    """One process on the whole batch; each half weighs one half, however many samples it has."""
    torch.manual_seed(0)
    model = mlp()
    optimizer, gammas = make(case, model), []
    weight = torch.cat([torch.full((k,), 0.5 / k) for k in (case.rows, BATCH - case.rows)])
    for x, y in batches()[: case.steps]:
        optimizer.zero_grad()
        optimizer.step(lambda x=x, y=y: optimizer.loss(model(x), y, weight))
        gammas.append(float(optimizer.last.gamma))
    return vector(model), gammas


def train_on_rank(rank: int, case: Case) -> dict[str, Any]:
    torch.manual_seed(rank)  # DDP gives all ranks the weights of rank 0
    model = DistributedDataParallel(mlp())
    optimizer, gammas, reductions = make(case, model), [], []
    stop = count_reductions(reductions)
    for x, y in batches()[: case.steps]:
        x, y = (t[: case.rows] if rank == 0 else t[case.rows :] for t in (x, y))
        optimizer.zero_grad()
        if case.closure:
            optimizer.step(lambda x=x, y=y: optimizer.loss(model(x), y))
        else:
            for k, (a, b) in enumerate(zip(x.chunk(case.micro), y.chunk(case.micro), strict=True)):
                model.require_backward_grad_sync = k == case.micro - 1  # what no_sync() sets
                (optimizer.loss(model(a), b) / case.micro).backward()
            reductions.clear()
            optimizer.step()
            assert len(reductions) == 1, "one reduction a step"
        gammas.append(float(optimizer.last.gamma))
    stop()
    return {"weights": vector(model), "gammas": gammas, "state": [optimizer.state[p] for p in model.parameters()]}


def count_reductions(calls: list[int]) -> Any:
    """Count the calls of all_reduce; call the result to stop."""
    real = dist.all_reduce

    def counting(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append(x.numel())
        return real(x, *args, **kwargs)

    dist.all_reduce = counting
    return lambda: setattr(dist, "all_reduce", real)


def work(rank: int) -> dict[str, Any]:
    return {case.name: train_on_rank(rank, case) for case in CASES} | {"faults": faults(rank)}


class Careless(DualSolver):
    """Takes the mean over its own samples for that of all."""

    on_ranks = True

    def solve(self, problem: ProxProblem) -> DualPoint:
        point = problem.move(problem.start(), problem.first())
        own = torch.dot(problem.origin.coefficients, problem.origin.scores.detach().sum(1))
        return dataclasses.replace(point, lam=point.lam + own)


def faults(rank: int) -> dict[str, Any]:
    """What must be refused, and what happens when the ranks are not kept together."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns

    found: dict[str, Any] = {}
    x, y = (t[rank::2] for t in batches()[0])

    def one_step(optimizer: Any, criterion: MultiClassHinge, model: nn.Module, batch: Tensor = x) -> None:
        criterion(model(batch), y).backward()
        optimizer.step()

    def made(model: nn.Module, solver: DualSolver = SINGLE, **options: Any) -> tuple[Any, MultiClassHinge, nn.Module]:
        criterion = MultiClassHinge()
        return ProxOptimizer(criterion, solver, model.parameters(), **options), criterion, model

    criterion, model = MultiClassHinge(), nn.Sequential(nn.Linear(5, K), nn.Linear(K, K), nn.Linear(K, K))
    zero = ZeroRedundancyOptimizer(model.parameters(), functools.partial(ProxOptimizer, criterion, SINGLE), lr=0.1)
    found["zero"] = message(lambda: one_step(zero, criterion, model))

    torch.manual_seed(rank)
    different = made(nn.Linear(5, K))
    found["different"] = message(lambda: one_step(*different))

    for name, solver in (("exact step", ExactQP()), ("careless", Careless())):
        optimizer, criterion, model = made(DistributedDataParallel(mlp()), solver)
        found[name] = message(lambda: optimizer.step(lambda: criterion(model(x), y)))
    found["exact"] = message(lambda: ExactQP().solve(optimizer.problem(criterion(model(x), y))))

    optimizer, criterion, model = made(DistributedDataParallel(mlp()))
    before = vector(model)
    one_step(optimizer, criterion, model, x * torch.nan if rank == 1 else x)
    found["nan"] = (torch.equal(before, vector(model)), int(optimizer.skipped))

    found["bases"] = bases_that_differ(rank)
    halves = [dist.new_group([r]) for r in range(2)]  # a group of one: nothing to reduce
    own = made(mlp(), process_group=halves[rank])
    one_step(*own)
    found["own group"] = bool(own[0].last.gamma > 0)
    return found


def bases_that_differ(rank: int) -> Any:
    """Steps where one rank's decompositions have other signs and another order, which are arbitrary."""
    torch.manual_seed(0)
    model, options = DistributedDataParallel(mlp()), {"memory": 0.9, "average": 0.9, "metric": Kronecker(every=2)}
    optimizer = ProxOptimizer(MultiClassHinge(smooth=True), SINGLE, model.parameters(), lr="auto", **options)
    eigh, qr = torch.linalg.eigh, torch.linalg.qr
    if rank == 1:
        torch.linalg.eigh = lambda x: (eigh(x)[0].flip(-1), -eigh(x)[1].flip(-1))
        torch.linalg.qr = lambda x: (-qr(x)[0], -qr(x)[1])
    for x, y in batches():
        differentiate(optimizer, model, x[rank::2], y[rank::2])
        optimizer.step()
    torch.linalg.eigh, torch.linalg.qr = eigh, qr
    scalars = {name: x for name, x in optimizer.param_groups[0].items() if isinstance(x, Tensor)}
    return [p.detach() for p in model.parameters()], [optimizer.state[p] for p in model.parameters()], scalars


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_on_ranks(work)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_two_ranks_are_one_process(case, ranks):
    weights, gammas = train_alone(case)
    first, second = (r[case.name] for r in ranks)
    assert torch.equal(first["weights"], second["weights"]), "the replicas drifted apart"
    assert first["gammas"] == second["gammas"]
    assert first["gammas"] == pytest.approx(gammas, abs=1e-6)
    torch.testing.assert_close(first["weights"], weights, atol=1e-6, rtol=0)
    torch.testing.assert_close(first["state"], second["state"], rtol=0, atol=0)
    assert min(gammas) < 1 or case.lr == "auto" or case.steps < STEPS  # else γ was not tested


@pytest.mark.parametrize("rank", [0, 1])
def test_what_cannot_be_right_is_refused_on_every_rank(ranks, rank):
    found = ranks[rank]["faults"]
    assert "ZeroRedundancyOptimizer" in found["zero"]
    assert "process_group=None" in found["different"]
    assert "ExactQP does not support several ranks" in found["exact step"]
    assert "no rank has the whole Jacobian" in found["exact"]
    assert "different dual points on different ranks" in found["careless"]
    assert found["nan"] == (True, 1)  # a NaN on one rank skips the step on all
    assert found["own group"]  # a group of one is a process of its own


def test_every_rank_has_the_bases_of_the_first(ranks):
    first, second = (r["faults"]["bases"] for r in ranks)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert any("U" in own for own in first[1])
