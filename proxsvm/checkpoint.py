"""Checkpoints that a crash cannot corrupt, and that load completely or not at all."""

from __future__ import annotations

import copy
import glob
import hashlib
import io
import os
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ABANDONED = 60  # seconds after which a temporary file that nobody writes to is that of a killed process


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Save ``parts`` under their names: ``save("last.pt", model=model, optimizer=optimizer, epoch=3)``.

    A part with a ``state_dict()`` is saved as that, all else as it is. A temporary file is written beside ``path``,
    flushed to disk and renamed: whenever the process dies, ``path`` is the complete old checkpoint or the new one.
    Links and permissions are kept. Raises TypeError for a value that ``load()`` would refuse, and OSError where the
    disk is full; the old checkpoint stays.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last.pt", model=model, epoch=3)
    ...     load(f"{folder}/last.pt", model=model)
    {'epoch': 3}
    """
    target = Path(path).resolve()
    for name, part in parts.items():
        if not hasattr(part, "state_dict"):
            _dumped(name, part)
    data = _dumped("a part", {name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items()})
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            left.unlink(missing_ok=True)
    written = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        written.touch(0o600 if target.exists() else 0o666, exist_ok=False)
        if target.exists():
            written.chmod(stat.S_IMODE(target.stat().st_mode))
        with open(written, "wb") as file:
            file.write(data + _mark(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, target)
    except OSError as error:
        free = shutil.disk_usage(target.parent).free
        raise OSError(f"could not write {target}, on whose disk {free:,} bytes are free: {error}") from error
    finally:
        written.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into ``parts``, and return everything else in it.

    Raises ValueError where the checkpoint is damaged, lacks a part or does not fit one, and nothing has changed then:
    modules, and parts with a ``check_state_dict()``, are checked first; others get their old state back.
    """
    data = Path(path).read_bytes()
    try:
        if data[-len(_mark(b"")) :] != _mark(data[: -len(_mark(b""))]):
            raise ValueError("its checksum differs")
        states: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path} is not a checkpoint, or is damaged: {error!r}") from error
    if missing := set(parts) - set(states):
        raise ValueError(f"{path} lacks {sorted(missing)}; it has {sorted(states)}")
    before = {}
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            _check_module(name, part, states[name])
        elif hasattr(part, "check_state_dict"):
            part.check_state_dict(states[name])
        else:
            before[name] = copy.deepcopy(part.state_dict())
    for name in (*before, *(name for name in parts if name not in before)):
        try:
            parts[name].load_state_dict(states.pop(name))
        except Exception as error:
            for other, state in before.items():
                parts[other].load_state_dict(state)
            raise ValueError(f"the checkpoint's {name!r} does not fit: {error}") from error
    return states


def _dumped(name: str, value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), map_location="cpu", weights_only=True)
    except Exception as error:
        raise TypeError(
            f"cannot save {name}, a {type(value).__name__}: it is, or contains, what torch.load(weights_only=True) "
            "refuses. Save plain numbers, strings, tensors, and lists and dicts of them: float(x) for a NumPy scalar, "
            "str(x) for a path, dataclasses.asdict(x) for a dataclass"
        ) from error
    return buffer.getvalue()


def _mark(data: bytes) -> bytes:
    """The end of the file, which torch.load() ignores."""
    return b"proxsvm sha256 " + hashlib.sha256(data).hexdigest().encode()


def _check_module(name: str, module: nn.Module, state: Any) -> None:
    there, here = (
        {k: _kind(x) for k, x in s.items()} if isinstance(s, Mapping) else {} for s in (state, module.state_dict())
    )
    for key in here | there:
        if (a := there.get(key, "missing")) != (b := here.get(key, "missing")):
            raise ValueError(f"the checkpoint's {name!r} is of another model: {key} is {a} there and {b} here")


def _kind(x: Any) -> str:
    return f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
