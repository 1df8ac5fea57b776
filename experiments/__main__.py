"""``python -m experiments COMMAND``."""

from __future__ import annotations

import argparse

from experiments import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="The experiments of proxsvm.")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser(
        "train",
        help="train an image classifier",
        description=train.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    train.add_arguments(command)
    command.set_defaults(main=train.main)
    args = parser.parse_args()
    args.main(args)


if __name__ == "__main__":
    main()
