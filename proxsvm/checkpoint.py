"""Checkpoints that a crash cannot corrupt, and that load completely or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import secrets
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

MARK = b"proxsvm sha256 "  # and the digest of all bytes before it: the comment of the zip archive of torch.save
MARKED = len(MARK) + 64
END = b"PK\x05\x06"  # begins the last 22 bytes of an archive without a comment
PLAIN = (type(None), bool, int, float, str, Tensor, nn.Parameter)  # what torch.load(weights_only=True) always loads


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Save ``parts`` under their names: ``save("last.pt", model=model, optimizer=optimizer, epoch=3)``.

    A part with a ``state_dict()`` is saved as that, all else as it is. A temporary file is written beside ``path``,
    flushed to disk and renamed: whenever the process dies, ``path`` is the complete old checkpoint or the new one.
    Where ``path`` is a link, the file that it points to is replaced. Raises TypeError for a value that ``load()`` would
    refuse.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last.pt", model=model, epoch=3)
    ...     load(f"{folder}/last.pt", model=model)
    {'epoch': 3}
    """
    target = Path(path).resolve()
    states = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    written = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    handle = os.open(written, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # minus the umask
    try:
        with os.fdopen(handle, "w+b") as file:
            for name, state in states.items():
                _check_loadable(name, state)
            torch.save(states, file)
            _sign(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, target)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)  # the rename must reach the disk, too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into ``parts``, and return everything else in it.

    The file's checksum is verified first. Every module, and every part with a ``check_state_dict()``, is checked before
    anything changes: names, shapes and dtypes. Raises ValueError where the checkpoint is damaged, lacks a part or does
    not fit.
    """
    with open(path, "rb") as file:
        try:
            _verify(file)
            states: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file may raise anything
            raise ValueError(f"{path} is not a checkpoint, or is damaged: {error!r}") from error
    if not isinstance(states, dict):
        raise ValueError(f"{path} holds a {type(states).__name__}; expected what proxsvm.checkpoint.save() wrote")
    missing = set(parts) - set(states)
    if missing:
        raise ValueError(f"{path} lacks {sorted(missing)}; it has {sorted(states)}")
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            _check_module(name, part, states[name])
        elif hasattr(part, "check_state_dict"):
            part.check_state_dict(states[name])
        elif isinstance(part.state_dict(), Mapping) and not isinstance(states[name], Mapping):
            raise ValueError(
                f"the checkpoint's {name!r} is of type {type(states[name]).__name__}; expected a state_dict"
            )
    for name, part in parts.items():
        part.load_state_dict(states.pop(name))
    return states


def _sign(file: BinaryIO) -> None:
    """Append the archive's digest as its comment; the records' own checksums do not cover its directory."""
    size = file.seek(-2, os.SEEK_END) + 2
    file.write(MARKED.to_bytes(2, "little"))  # the length of the comment
    mark = _mark(file, size)
    file.seek(0, os.SEEK_END)
    file.write(mark)


def _verify(file: BinaryIO) -> None:
    """Raise ValueError unless the file is as it was written; older files have no digest, only checksums of records."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MARKED))
    tail = file.read()
    if tail.startswith(MARK):
        whole = tail == _mark(file, size - MARKED)
    else:
        whole = tail[-22:-18] == END and zipfile.ZipFile(file).testzip() is None
    if not whole:
        raise ValueError("its checksum differs")
    file.seek(0)


def _mark(file: BinaryIO, size: int) -> bytes:
    """The comment for the first ``size`` bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (block := file.read(min(size, 1 << 20))):
        digest.update(block)
        size -= len(block)
    return MARK + digest.hexdigest().encode()


def _check_loadable(name: str, state: Any) -> None:
    for where, leaf in _unusual(name, state):
        buffer = io.BytesIO()
        try:
            torch.save(leaf, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except (RuntimeError, TypeError, AttributeError, ValueError, pickle.PickleError) as error:
            raise TypeError(
                f"cannot save {where}: it is a {type(leaf).__module__}.{type(leaf).__qualname__}, which "
                "torch.load(weights_only=True) refuses. Save plain numbers, strings, tensors, and lists and dicts of "
                "them: float(x) for a NumPy scalar, str(x) for a path, dataclasses.asdict(x) for a dataclass"
            ) from error


def _unusual(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All values inside ``value`` that are not plain data, and where they are."""
    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            yield from _unusual(f"a key of {where}", key)
            yield from _unusual(f"{where}[{key!r}]", entry)
    elif type(value) in (list, tuple):
        for index, entry in enumerate(value):
            yield from _unusual(f"{where}[{index}]", entry)
    elif type(value) not in PLAIN:
        yield where, value


def _check_module(name: str, module: nn.Module, state: Any) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(f"the checkpoint's {name!r} is a {type(state).__name__}; expected a module's state")
    own = module.state_dict()
    lacking, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    if lacking or extra:
        raise ValueError(f"the checkpoint's {name!r} is of another model: it lacks {lacking} and has {extra} too many")
    for key, mine in own.items():
        there, here = _kind(state[key]), _kind(mine)
        if isinstance(mine, Tensor) and there != here:
            raise ValueError(f"the checkpoint's {name!r} is of another model: {key} is {there} there and {here} here")


def _kind(value: Any) -> str:
    return f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
