"""A linear SVM whose rows are spread over processes, each with its own: every rank learns the same certified weights.

torchrun --nproc-per-node 2 -m examples.svm_on_ranks
torchrun --nproc-per-node 2 -m examples.svm_on_ranks --loss log_loss
python -m examples.svm_on_ranks                                      # one process, the same model
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch.distributed as dist
from sklearn.datasets import load_digits

from proxsvm.estimators import LinearSVM


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit on every process that torchrun started.")
    parser.add_argument("--loss", default="crammer_singer")
    parser.add_argument("--C", type=float, default=0.1)
    parser.add_argument("--save", help="where rank 0 saves the weights")
    options = parser.parse_args()

    parallel = "RANK" in os.environ
    if parallel:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if parallel else (0, 1)

    X, y = load_digits(return_X_y=True)
    X, y = X[rank::world] / 16, y[rank::world]  # this rank reads its own rows: a file, a table's partition, ...
    model = LinearSVM(options.C, options.loss, tol=1e-3, process_group="default").fit(X, y)

    if rank == 0:
        gap = model.dual_gap_ / model.objective_
        print(f"{world} process(es): objective {model.objective_:.3f}, relative gap {gap:.1e}, {model.n_iter_} rounds")
        if options.save:
            np.savez(options.save, coef=model.coef_, intercept=model.intercept_, objective=model.objective_)
    if parallel:
        dist.barrier()  # no rank exits while another may still communicate with it
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
