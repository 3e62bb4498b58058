"""Files packed with gzip or zstd, read or unpacked without holding them in memory."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from fusionscope.profiler.errors import UnreadableTrace

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
#: What unpacking leaves free on the disk: a small packed file can hold terabytes.
_KEEP_FREE = 1 << 30
#: A zstd window of 128 MiB, which is what `zstd --long` writes.
_WINDOW = 1 << 27
DAMAGE = (OSError, EOFError, zlib.error, zstandard.ZstdError)


def packing(head: bytes) -> str:
    """ "gzip", "zstd", or "" where the bytes are not packed."""
    if head.startswith(GZIP):
        return "gzip"
    return "zstd" if head.startswith(ZSTD) else ""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's content, unpacked on the way."""
    with open(path, "rb") as plain:
        kind = packing(plain.read(4))
        plain.seek(0)
        if kind == "gzip":
            with gzip.GzipFile(fileobj=plain) as file:
                yield cast(BinaryIO, file)
        elif kind == "zstd":
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            with unpacker.stream_reader(plain, read_across_frames=True) as reader:
                yield cast(BinaryIO, reader)
        else:
            yield plain


def head(path: Path, size: int = 4096) -> tuple[str, bytes]:
    """How a file is packed, and the first bytes of what it holds. Raises UnreadableTrace."""
    try:
        with open(path, "rb") as plain:
            kind = packing(plain.read(4))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableTrace(f"{path} cannot be opened ({reason}): give the path of a trace file.") from error
    except ValueError as error:
        raise UnreadableTrace(f"{str(path)!r} is no path ({error}): give the path of a trace file.") from error
    try:
        with opened(path) as file:
            return kind, _read(file, size)
    except DAMAGE as error:
        raise damaged(path, kind, error) from error


def damaged(path: Path, kind: str, error: BaseException) -> UnreadableTrace:
    """What to say of a packed file that cannot be unpacked to its end."""
    tool = "zstd" if kind == "zstd" else "gzip"
    return UnreadableTrace(
        f"{path} is a damaged or truncated {kind or 'file'}{' file' if kind else ''} ({error}): copy it again"
        + (f", `{tool} -t` checks it." if kind else ".")
    )


def unpack(path: Path, target: Path) -> None:
    """The content of `path` as a plain file. Raises UnreadableTrace where it is damaged or the disk is too small."""
    try:
        with opened(path) as source, open(target, "wb") as plain:
            spool(source, plain, target.parent, str(path))
    except DAMAGE as error:
        with open(path, "rb") as file:
            raise damaged(path, packing(file.read(4)), error) from error


def spool(source: BinaryIO, target: BinaryIO, folder: Path, label: str) -> None:
    """Copy a stream to the disk in pieces. Raises UnreadableTrace before the disk is full."""
    written = 0
    while piece := source.read(1 << 20):
        # Asking for every piece would cost more than the copy.
        if written % (64 << 20) == 0 and shutil.disk_usage(folder).free < _KEEP_FREE:
            raise UnreadableTrace(
                f"{label} holds more than {written >> 20} MiB, and the disk of {folder} is almost full: "
                "unpack it where there is room and give the unpacked file, or set $TMPDIR."
            )
        target.write(piece)
        written += len(piece)


def _read(file: BinaryIO, size: int) -> bytes:
    """Up to `size` bytes; a reader may give less at a time."""
    found = b""
    while len(found) < size and (piece := file.read(size - len(found))):
        found += piece
    return found
