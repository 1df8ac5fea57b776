"""``python -m experiments COMMAND``."""

from __future__ import annotations

import argparse

from experiments import cost, download, sweep, train
from experiments.report import figures, page

MODULES = {"download": download, "train": train, "sweep": sweep, "cost": cost, "report": page, "figure": figures}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="The experiments of proxsvm.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, module in MODULES.items():
        said = {"help": str(module.__doc__).partition("\n")[0], "description": module.__doc__}
        command = commands.add_parser(name, formatter_class=argparse.RawTextHelpFormatter, **said)
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    args = parser.parse_args()
    args.main(args)


if __name__ == "__main__":
    main()
