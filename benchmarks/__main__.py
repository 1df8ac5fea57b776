"""Run the benchmarks: ``python -m benchmarks [names] [--quick] [--against COMMIT]``."""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks.common import Options, table
from benchmarks.compare import run_in_turn

FILES = {  # imported one by one, so that an old commit need not know all that the others import
    **dict.fromkeys(("step", "criterion", "training_step", "metric_cost"), "step"),
    **dict.fromkeys(("against_liblinear", "against_logistic", "which_estimator", "any_scale"), "linear"),
}
NAMES = (*FILES, "calls", "structures", "structured_estimator", "against_exact_qp", "as_a_user", "ranks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"some of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="a smaller variant of each, a few minutes in all")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="the folder for tables and pictures")
    parser.add_argument("--data", type=Path, default=Path("data"), help="a folder with the data sets")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads; 1 is the least noisy")
    parser.add_argument("--repeats", type=int, default=0, help="rounds of interleaved timings")
    parser.add_argument("--against", metavar="COMMIT", help="this tree and that commit in turn, three times")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if args.against:
        given = [f"--data={args.data.resolve()}", f"--threads={args.threads}", f"--repeats={args.repeats}"]
        given += [*args.names, *["--quick"] * args.quick]
        print(table(run_in_turn(args.against, 3, (args.out / "compare").resolve(), given)))
        return
    torch.set_num_threads(args.threads)
    options = Options(args.quick, args.out, args.repeats, args.data)
    for name in args.names or NAMES:
        file = importlib.import_module(f"benchmarks.{FILES.get(name, name)}")
        getattr(file, name if name in FILES else "main")(options)


if __name__ == "__main__":
    main()
