"""Download the data sets from their authors, with checksums; a stopped download is resumed.

python -m experiments download cifar10 cifar100 snli glove --data DIR
python -m experiments download glove-840b --data DIR --mirror https://example.org/data    # the same files elsewhere
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

BLOCK = 1 << 20
PATIENCE = 60  # seconds without a byte
SLACK = 1.1  # an archive may be larger than expected by this factor


@dataclass(frozen=True)
class Archive:
    """An official archive, its checksum ("md5:…" or "sha256:…") and size, and the files to extract from it."""

    url: str
    checksum: str
    size: int
    files: tuple[str, ...]


ARCHIVES = {
    # The md5s are on the authors' page, https://www.cs.toronto.edu/~kriz/cifar.html.
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        170_052_171,
        tuple(f"cifar-10-batches-bin/{name}.bin" for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]),
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
        168_513_733,
        ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin"),
    ),
    # Stanford publishes no checksums, as far as we found. SNLI's is the one in InferSent (dataset/get_data.bash) and
    # torchtext 0.9 (SNLI); GloVe's are those of torchtext (torchtext/experimental/checksums_glove.json).
    "snli": Archive(
        "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
        "md5:981c3df556bbaea3f17f752456d0088c",
        94_550_081,
        tuple(f"snli_1.0/snli_1.0_{split}.jsonl" for split in ("train", "dev", "test")),
    ),
    "glove": Archive(
        "https://nlp.stanford.edu/data/glove.6B.zip",
        "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
        862_182_613,
        ("glove.6B.100d.txt",),
    ),
    "glove-840b": Archive(
        "https://nlp.stanford.edu/data/glove.840B.300d.zip",
        "sha256:c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
        2_176_768_927,
        ("glove.840B.300d.txt",),
    ),
}


def download(name: str, data: Path, mirror: str | None = None) -> list[Path]:
    """The files of a data set in ``data``: the existing ones, or downloaded, checked and unpacked.

    The archive is removed once it is unpacked. ``mirror`` is another address of the folder that contains it.
    """
    if name not in ARCHIVES:
        raise ValueError(f"no data set named {name!r}; there are {', '.join(ARCHIVES)}")
    archive = ARCHIVES[name]
    files = [data / file for file in archive.files]
    if not all(file.exists() for file in files):
        base = archive.url.rpartition("/")[2]
        data.mkdir(parents=True, exist_ok=True)
        packed = data / base
        if packed.exists():
            if (found := digest(packed, archive.checksum)) != archive.checksum:
                raise ValueError(f"{packed} has {found}; expected {archive.checksum}: remove it and run again")
        else:
            url = archive.url if mirror is None else f"{mirror.rstrip('/')}/{base}"
            fetch(url, packed, archive.checksum, int(SLACK * archive.size))
        unpack(packed, archive.files, data)
        packed.unlink()
    return files


def fetch(url: str, file: Path, checksum: str, limit: int) -> None:
    """Download ``url``, at most ``limit`` bytes, to ``file``: complete and correct, or not at all.

    It is written to ``file.part``. If one was left, the server is asked for the rest; a server that sends all of
    it again is read from the start.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the address is {url!r}; expected one that starts with http:// or https://")
    part = file.with_name(file.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "proxsvm-experiments"} | ({"Range": f"bytes={have}-"} if have else {})
    again = "Run the same command again to resume"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            start, total = _extent(url, answer, have)
            _append(answer, part, start, total, limit)
    except TooLarge as error:
        part.unlink(missing_ok=True)
        raise ValueError(
            f"{url} sends {error}; expected at most {limit}: it is another file. Nothing was kept"
        ) from None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # that one: there is nothing left to download
            raise ConnectionError(
                f"{url} answers {error.code} {error.reason}. Another address: --mirror URL"
            ) from error
        total = None
    except (OSError, http.client.HTTPException) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise ConnectionError(f"{url} broke off ({error}) with {kept} bytes here. {again}") from error
    kept = part.stat().st_size
    if total is not None and kept < total:
        raise ConnectionError(f"{url} stopped after {kept} of {total} bytes. {again}")
    if (found := digest(part, checksum)) != checksum:
        part.unlink()
        raise ValueError(
            f"what {url} sent has {found}; expected {checksum}. It was removed: run the command again, and if that "
            "does not help, the file on the server is a different one"
        )
    os.replace(part, file)


def unpack(packed: Path, files: tuple[str, ...], to: Path) -> None:
    """Extract ``files`` from an archive, each written completely or not at all.

    Only these names are ever written, and only regular files are read: no path or link in the archive is followed.
    """
    with _members(packed) as member:
        for name in files:
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{target.name}.part")
            try:
                with member(name) as source, beside.open("wb") as out:
                    shutil.copyfileobj(source, out, BLOCK)
            except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
                beside.unlink(missing_ok=True)
                raise ValueError(f"{packed} has no readable file {name} ({error}): remove it and run again") from error
            os.replace(beside, target)


@contextmanager
def _members(packed: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """A function from the name of a regular file in the archive to its content."""
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as archive:
            yield archive.open
        return
    with tarfile.open(packed) as tar:

        def member(name: str) -> IO[bytes]:
            content = tar.extractfile(name) if tar.getmember(name).isreg() else None
            if content is None:
                raise KeyError(f"{name} is not a regular file")
            return content

        yield member


def _extent(url: str, answer: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """The offset in the file at which the answer starts, and the size of the whole file if the server sends it."""
    if answer.status == http.client.PARTIAL_CONTENT:
        given = answer.headers.get("Content-Range", "")
        if not given.startswith(f"bytes {have}-"):
            raise ValueError(
                f"{url} was asked for bytes from {have} and answers {given!r}: remove the .part and run again"
            )
        size = given.rpartition("/")[2]
        return have, int(size) if size.isdigit() else None
    size = answer.headers.get("Content-Length", "")
    return 0, int(size) if size.isdigit() else None


class TooLarge(Exception):
    """More bytes than the limit allows."""


def _append(answer: http.client.HTTPResponse, part: Path, start: int, total: int | None, limit: int) -> None:
    """The answer's bytes, into ``part`` from ``start`` on."""
    if total is not None and total > limit:
        raise TooLarge(f"{total} bytes")
    name = part.name.removesuffix(".part")
    with (
        part.open("ab" if start else "wb") as out,
        tqdm(desc=name, initial=start, total=total, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while block := answer.read(BLOCK):
            if out.tell() + len(block) > limit:
                raise TooLarge(f"more than {limit} bytes")
            out.write(block)
            bar.update(len(block))


def digest(file: Path, like: str) -> str:
    """The checksum of a file, of the kind and in the form of ``like``: "md5:…"."""
    kind = like.partition(":")[0]
    hasher = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as content:
        while block := content.read(BLOCK):
            hasher.update(block)
    return f"{kind}:{hasher.hexdigest()}"


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
