"""``python -m experiments COMMAND``."""

from __future__ import annotations

import argparse

from experiments import cost, download, sweep, train
from experiments.report import figures, page

COMMANDS = {
    "download": (download, "download the data sets from their authors"),
    "train": (train, "train one network"),
    "sweep": (sweep, "run a study, shared by any number of workers"),
    "cost": (cost, "measure what a training step of each optimizer costs"),
    "report": (page, "write one page with all results, or print a study's table"),
    "figure": (figures, "draw the pictures of the results"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="The experiments of proxsvm.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=module.__doc__, formatter_class=argparse.RawTextHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    args = parser.parse_args()
    args.main(args)


if __name__ == "__main__":
    main()
