"""Several processes on PyTorch's own engine: DDP, or FSDP2 with ``--shard``. The optimizer needs no extra options.

torchrun --nproc-per-node 2 -m examples.with_torchrun
torchrun --nproc-per-node 2 -m examples.with_torchrun --shard
torchrun --nproc-per-node 2 -m examples.with_torchrun --steps 5      # a multi-step solver
python -m examples.with_torchrun                                    # one process, the same weights
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from examples.plain import AVERAGE, BATCH, OPTIONS, accuracy, dataset, network
from proxsvm import ProxOptimizer, follow
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on every process that torchrun started.")
    parser.add_argument("--shard", action="store_true", help="FSDP2 instead of DDP")
    parser.add_argument("--steps", type=int, default=1, help="steps of the dual solver")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", help="where rank 0 saves the averaged weights")
    options = parser.parse_args()

    parallel = "RANK" in os.environ
    if parallel:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if parallel else (0, 1)

    model = network()
    if parallel and options.shard:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    elif parallel:
        model = DistributedDataParallel(model)

    criterion = MultiClassHinge(smooth=True)
    solver = SingleStepFW() if options.steps == 1 else MultiStepFW(options.steps)
    optimizer = ProxOptimizer(criterion, solver, model.parameters(), average=AVERAGE, **OPTIONS)
    follow(model, optimizer)  # model.eval() and what is saved use the averages
    for _ in range(options.epochs):
        for x, y in DataLoader(dataset(), BATCH):
            x, y = x[rank::world], y[rank::world]  # this rank's share of the batch
            optimizer.zero_grad()
            if solver.needs_graph:
                optimizer.step(lambda x=x, y=y: criterion(model(x), y))
            else:
                criterion(model(x), y).backward()
                optimizer.step()

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        trained: nn.Module = network()
        trained.load_state_dict(weights)
        print(f"{world} process(es): accuracy {accuracy(trained):.3f}, last γ {float(optimizer.last.gamma):.3f}")
        if options.save:
            torch.save(weights, options.save)
    if parallel:
        dist.barrier()  # rank 0 was busy: no rank exits while another may still communicate with it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
