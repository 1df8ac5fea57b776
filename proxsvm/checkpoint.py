"""Checkpoints that a crash cannot corrupt, and that load completely or not at all."""

import copy
import hashlib
import io
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

MARK = b"proxsvm sha256 "  # of the checksum at the end of the file, which torch.load() ignores


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Save ``parts``, or their states: ``save("last.pt", model=model, optimizer=optimizer, epoch=3)``.

    A file is written beside ``path``, flushed and renamed: at any time, ``path`` is a complete checkpoint.
    """
    target, buffer = Path(path).resolve(), io.BytesIO()
    try:
        torch.save({name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items()}, buffer)
        torch.load(io.BytesIO(data := buffer.getvalue()), map_location="cpu", weights_only=True)
    except Exception as error:
        hint = "numbers, strings, tensors, and lists and dicts of them; float(x) for a NumPy scalar, str(x) for a path"
        raise TypeError(f"cannot save {', '.join(parts)}: torch.load() would refuse it. Save {hint}") from error
    written = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        with open(written, "wb") as file:
            if target.exists():
                written.chmod(target.stat().st_mode)
            file.write(data + MARK + hashlib.sha256(data).hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        written.replace(target)
    except OSError as error:
        raise OSError(f"could not write {target}, the old checkpoint stays: {error}") from error
    finally:
        written.unlink(missing_ok=True)
    for left in target.parent.glob(".*.part"):  # nobody writes to it after a minute: its process was killed
        if left.name.startswith(f".{target.name}.") and target.stat().st_mtime - left.stat().st_mtime > 60:
            left.unlink(missing_ok=True)


def load(path: str | os.PathLike[str], **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into ``parts``, return the rest. ValueError: damaged, or one does not fit; nothing changed."""
    body, _, digest = (data := Path(path).read_bytes()).rpartition(MARK)
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(f"{path} is not a checkpoint of proxsvm, or is damaged: its checksum differs")
    states: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if missing := set(parts) - set(states):
        raise ValueError(f"{path} lacks {sorted(missing)}; it has {sorted(states)}")
    before = copy.deepcopy([part.state_dict() for part in parts.values()])
    with ExitStack() as undo:  # the last one first: the states of a followed model and its optimizer have the averages
        for part in (part for part in parts.values() if not getattr(part, "averaged", True)):
            undo.callback(part.train)
        for part, state in zip(parts.values(), before, strict=True):
            undo.callback(part.load_state_dict, state)
        try:
            for name, part in parts.items():
                part.load_state_dict(state := states.pop(name))
                if isinstance(part, torch.nn.Module) and any(
                    x.dtype != state[k].dtype for k, x in part.named_parameters()
                ):
                    raise TypeError("it was saved in another precision")
        except Exception as error:
            raise ValueError(f"the checkpoint's {name!r} does not fit, and nothing was changed: {error}") from error
        undo.pop_all()
    return states
