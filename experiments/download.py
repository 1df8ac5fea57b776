"""Download the data sets from their authors, with checksums.

python -m experiments download cifar10 cifar100 snli glove california bike --data DIR
python -m experiments download glove-840b --data DIR --mirror https://example.org/data    # the same files elsewhere
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from pandas import read_csv
from torch.hub import download_url_to_file

BLOCK = 1 << 20
SOURCES = read_csv(Path(__file__).with_name("sources.csv"), comment="#", keep_default_na=False)
SOURCES["files"] = SOURCES.files.str.split()
ARCHIVES: dict[str, Any] = {row.name: row for row in SOURCES.itertuples(index=False, name="Archive")}


def download(name: str, data: Path, mirror: str | None = None) -> list[Path]:
    """The files of a data set in ``data``: the existing ones, or downloaded, checked and unpacked.

    The archive is removed once it is unpacked. ``mirror`` is another address of the folder that contains it.
    """
    archive = ARCHIVES[name]
    files = [data / file for file in archive.files]
    if not all(file.exists() for file in files):
        data.mkdir(parents=True, exist_ok=True)
        base = archive.url.rpartition("/")[2]
        packed, url = data / base, f"{mirror.rstrip('/')}/{base}" if mirror else archive.url
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the address is {url!r}; expected one that starts with http:// or https://")
        if not packed.exists():
            try:
                download_url_to_file(url, str(packed), progress=sys.stderr.isatty())
            except OSError as error:
                raise ConnectionError(f"{url}: {error}. Run the command again, or with --mirror URL") from error
        _check(packed, archive.checksum)
        unpack(packed, archive, data)
        packed.unlink()
    return files


def unpack(packed: Path, archive: Any, to: Path) -> None:
    """Extract the files of an archive, each written completely or not at all.

    Only these names are ever written, and only files in the archive are read: no path or link leads out of it.
    """
    with zipfile.ZipFile(packed) if zipfile.is_zipfile(packed) else tarfile.open(packed) as opened:
        read = opened.open if isinstance(opened, zipfile.ZipFile) else opened.extractfile
        for name in archive.files:
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{target.name}.part")
            try:
                source = read(archive.inside + name)
            except KeyError:
                source = None
            if source is None:
                raise ValueError(f"{packed} has no file {name}: remove it and run again")
            with source, beside.open("wb") as out:
                shutil.copyfileobj(source, out, BLOCK)
            if archive.checksum.startswith("lines:"):
                text = "".join(line + "\n" for line in beside.read_text(encoding="utf-8").splitlines())
                beside.write_text(text, encoding="utf-8", newline="\n")
                _check(beside, archive.checksum.replace("lines:", "sha256:"))
            os.replace(beside, target)


def _check(file: Path, checksum: str) -> None:
    """Remove a file whose checksum is another one. (That of "lines:…" is not the archive's.)"""
    kind, _, expected = checksum.partition(":")
    if kind == "lines":
        return
    with file.open("rb") as content:
        hasher = hashlib.new(kind, usedforsecurity=False)
        while block := content.read(BLOCK):
            hasher.update(block)
    if (found := hasher.hexdigest()) != expected:
        file.unlink()
        raise ValueError(
            f"{file} has {kind}:{found}; expected {checksum}. It was removed: run the command again, and if that does "
            "not help, the file on the server is a different one"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which data sets, and where to."""
    parser.add_argument("names", nargs="+", choices=list(ARCHIVES), metavar="name", help=", ".join(ARCHIVES))
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder to write to; default: data")
    parser.add_argument("--mirror", metavar="URL", help="another address of the folder that contains the archives")


def main(args: argparse.Namespace) -> None:
    """Download what the command line asks for; an error is one line."""
    for name in args.names:
        try:
            for file in download(name, args.data, args.mirror):
                print(file)
        except (OSError, ValueError) as error:
            raise SystemExit(f"{name}: {error}") from error
