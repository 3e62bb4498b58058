"""Which reader a file is for: by its first bytes, never by its name."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from pathlib import Path

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import kineto, nsys_sqlite
from fusionscope.profiler.trace import Trace

_SQLITE = b"SQLite format 3\x00"
_GZIP = b"\x1f\x8b"
_READABLE = "FusionScope reads Nsight Systems .sqlite exports and torch.profiler .json or .json.gz traces"


def read_trace(path: str | Path) -> Trace:
    """The trace in one file, whichever profiler wrote it.

    Raises UnreadableTrace with one sentence: what the file is, where that shows and what to do.
    """
    path = Path(path)
    head = _head(path)
    if head.startswith(_SQLITE):
        return nsys_sqlite.read(path)
    if head.startswith(_GZIP):
        inner = _inner_head(path)
        if inner.startswith(_SQLITE):
            return _unpacked(path)
        _refuse(path, inner, "is a gzip file that holds")
        return kineto.read(path)
    _refuse(path, head, "is")
    return kineto.read(path)


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableTrace(f"{path} cannot be opened ({reason}): give the path of a trace file.") from error
    except ValueError as error:
        raise UnreadableTrace(f"{str(path)!r} is no path ({error}): give the path of a trace file.") from error


def _inner_head(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read(4096)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableTrace(
            f"{path} is a damaged or truncated gzip file ({error}): copy it again, `gzip -t` checks it."
        ) from error


def _unpacked(path: Path) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / (path.name.removesuffix(".gz") or "trace.sqlite")
        try:
            with gzip.open(path) as source, open(plain, "wb") as target:
                shutil.copyfileobj(source, target)
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableTrace(f"{path} cannot be unpacked ({error}): copy it again.") from error
        return nsys_sqlite.read(plain)


def _refuse(path: Path, head: bytes, says: str) -> None:
    """Raise for everything that does not start like JSON."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return
    start = text[:24]
    lower = text[:200].lower()
    if not text:
        what = "empty: record or copy the trace again"
    elif text.startswith(b"version https://git-lfs"):
        what = "a Git LFS pointer, not the trace itself: run `git lfs pull`"
    elif lower.startswith((b"<!doctype", b"<html", b"<?xml")):
        what = f"a web page (it starts with {start!r}), as a failed download leaves: download the raw file"
    elif text.startswith(b"PK\x03\x04"):
        what = "a zip archive: unpack it and give the trace inside"
    elif text.startswith(b"\x28\xb5\x2f\xfd"):
        what = "a zstd file: unpack it with `zstd -d`"
    elif path.suffix in (".nsys-rep", ".qdrep"):
        what = "an Nsight Systems report: export it with `nsys export --type sqlite`"
    else:
        what = f"no trace (it starts with {start!r}): {_READABLE}"
    raise UnreadableTrace(f"{path} {says} {what}.")
