"""A run as one file, to attach or to keep at a URL: a .tar or .zip of its tables and run.json.

Unpacking trusts nothing: only the files of a run are taken, by name, into a folder of our own; links, other paths and
more bytes than a run may have are refused.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from fusionscope.profiler import parquet_file
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.remote import is_url, local_copy
from fusionscope.profiler.trace import TABLES
from fusionscope.profiler.whole_file import whole_file

ENDINGS = (".tar", ".zip")
FILES = (*(f"{name}.parquet" for name in TABLES), "trace.json", "run.json")
#: Most bytes of a packed file, and of all files in it.
LONGEST, LARGEST = 2 << 30, 4 << 30
#: Most rows of its tables together.
MOST_ROWS = 50_000_000
TIMEOUT_S = 60
#: Unpacked runs, by what named them; the folders go when the process ends.
_open: dict[str, tempfile.TemporaryDirectory[str]] = {}


class BadPack(FusionScopeError):
    """A packed run that cannot be fetched or must not be unpacked."""


def is_packed(ref: str) -> bool:
    """Whether a reference names a packed run: a file or URL that ends in .tar or .zip."""
    return ref.partition("?")[0].lower().endswith(ENDINGS)


def pack(folder: Path, file: Path) -> None:
    """Write a run's folder as one file; its ending says which kind. The same run gives the same bytes.

    Raises FusionScopeError for another ending, or where the file cannot be written.
    """
    if file.suffix.lower() not in ENDINGS:
        raise FusionScopeError(f"--pack {file} must end in {' or '.join(ENDINGS)}, which says how it is packed.")
    with whole_file(file) as partial:
        (_pack_tar if file.suffix.lower() == ".tar" else _pack_zip)(folder, partial)


def _pack_tar(folder: Path, file: Path) -> None:
    with tarfile.open(file, "w") as archive:
        for name in FILES:
            data = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))


def _pack_zip(folder: Path, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FILES:
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_DEFLATED)


def unpacked(ref: str) -> Path:
    """The folder of a packed run, for as long as this process lives.

    `ref` is a file, or a URL (http, https, file, or what fsspec opens). Raises BadPack where it cannot be fetched or
    is no packed run.
    """
    if ref not in _open:
        folder = tempfile.TemporaryDirectory(prefix="fusionscope-run-")
        try:
            with _fetched(ref) as file:
                _unpack(file, ref, Path(folder.name))
        except BaseException:
            folder.cleanup()
            raise
        _open[ref] = folder
    return Path(_open[ref].name)


@contextlib.contextmanager
def _fetched(ref: str) -> Iterator[Path]:
    """The packed file on this machine."""
    if ref.startswith(("http://", "https://", "file://")):
        with tempfile.TemporaryDirectory(prefix="fusionscope-") as folder:
            copy = Path(folder) / f"run{Path(ref.partition('?')[0]).suffix.lower()}"
            try:
                with urllib.request.urlopen(ref, timeout=TIMEOUT_S) as answer, open(copy, "wb") as file:
                    _copy(answer, file, LONGEST, ref)
            except (OSError, ValueError) as error:
                raise BadPack(f"{ref} cannot be fetched ({error}): check the address.") from error
            yield copy
    elif is_url(ref):
        with local_copy(ref) as copy:
            yield copy
    else:
        yield Path(ref)


def _unpack(file: Path, ref: str, folder: Path) -> None:
    try:
        if file.suffix.lower() == ".zip":
            with zipfile.ZipFile(file) as archive:
                files = archive.infolist()
                if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in files):
                    raise zipfile.BadZipFile("a file in it is packed in another way than with deflate")
                _take(((entry.filename, entry) for entry in files), archive.open, ref, folder)
        else:
            with tarfile.open(file, "r:") as tar:
                # A link or device has no bytes of its own and is no file of a run, whatever its name.
                members = ((entry.name, entry) for entry in tar if entry.isreg())
                _take(members, tar.extractfile, ref, folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeDecodeError) as error:
        raise BadPack(
            f"{ref} is no packed run ({error}); make one with: fusionscope export RUN --pack FILE."
        ) from error
    except OSError as error:
        raise BadPack(f"{ref} cannot be read ({error.strerror or error}).") from error
    _check_tables(folder, ref)
    if not (folder / "run.json").is_file():
        raise BadPack(
            f"{ref} holds no run.json: a packed run is made with `fusionscope export RUN --pack FILE`; from another "
            "archive unpack the traces and import those."
        )
    if lacking := [name for name in FILES if not (folder / name).is_file()]:
        raise BadPack(f"{ref} lacks {', '.join(lacking)}: make it again with: fusionscope export RUN --pack FILE.")


def _check_tables(folder: Path, ref: str) -> None:
    """Raises BadPack for tables that unpack to more than a run may hold: a small file can stand for endless rows."""
    rows = size = 0
    for path in folder.glob("*.parquet"):
        try:
            told = parquet_file.told(path)
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            continue  # a damaged table is named where the run is read
        rows, size = rows + told.rows, size + told.bytes
    if rows > MOST_ROWS or size > LARGEST:
        raise BadPack(f"{ref} is larger than a run may be; import the trace on this machine instead.")


def _take(
    entries: Iterable[tuple[str, Any]], opener: Callable[[Any], IO[bytes] | None], ref: str, folder: Path
) -> None:
    """Copy the files of a run out of an archive, by their names alone."""
    left = LARGEST
    for name, entry in entries:
        parts = name.removeprefix("./").split("/")
        # A folder around the files is allowed, as archives of a folder have one.
        if parts[-1] not in FILES or len(parts) > 2 or ".." in parts:
            continue
        target = folder / parts[-1]
        if target.exists():
            raise BadPack(f"{ref} holds {parts[-1]} twice; make it again with: fusionscope export RUN --pack FILE.")
        source = opener(entry)
        assert source is not None, "only regular files come here"
        with source, open(target, "wb") as file:
            left -= _copy(source, file, left, ref)


def _copy(source: IO[bytes], target: IO[bytes], most: int, ref: str) -> int:
    """Bytes copied. Raises BadPack for more than `most`, whatever the archive says of its sizes."""
    done = 0
    while block := source.read(1 << 20):
        done += len(block)
        if done > most:
            raise BadPack(f"{ref} is larger than a run may be; import the trace on this machine instead.")
        target.write(block)
    return done
