"""What the user gives to be imported: files, folders of ranks, and standard input."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import detect, nsys_parquet, rocprofv3_csv
from fusionscope.profiler.readers.packed import spool
from fusionscope.profiler.remote import errors_of, filesystem, is_url

#: A folder with more entries than this is no folder of one run's traces.
_MOST_ENTRIES = 20_000
# One recording can be written in several forms; the first of these is read.
_FORMS = (r"\.sqlite", r"_results\.db", r"_results\.json", r"_kernel_trace\.csv", r"_results\.pftrace", r"\.nsys-rep")
_FORM = re.compile("(" + "|".join(_FORMS) + r")(?:\.gz|\.zst)?$")


@dataclass
class Inputs:
    """The traces to read, and sentences about what was found and is not read."""

    paths: list[str | Path]
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def gathered(given: Sequence[str | Path]) -> Iterator[Inputs]:
    """The traces of files, folders and "-" (standard input), in order; valid inside the context.

    A folder stands for the traces in it, at any depth, in the order of their names with numbers as numbers. A URL is
    passed on as it is, for whoever reads it to fetch; one that ends in a slash stands for the files under it.
    Raises FusionScopeError for a folder without a trace, or "-" twice.
    """
    with contextlib.ExitStack() as stack:
        found = Inputs([])
        for one in given:
            path = Path(one)
            if is_url(one):
                found.paths += _under(str(one)) if str(one).endswith("/") else [str(one)]
            elif str(one) == "-":
                if sum(str(other) == "-" for other in given) > 1:
                    raise FusionScopeError("- (standard input) is given twice: it holds one trace.")
                found.paths.append(_from_stdin(stack))
            elif path.is_dir() and not nsys_parquet.is_folder(path):
                inside = traces_in(path)
                found.paths += inside.paths
                found.notes += inside.notes
            else:
                found.paths.append(path)
        # `import *.csv` gives all files of rocprofv3: those beside the kernels are read with them.
        here = set(map(str, found.paths))
        found.paths = [path for path in found.paths if not here.intersection(_kernels(str(path)))]
        yield found


def _kernels(path: str) -> list[str]:
    """The paths or URLs of kernels with which a file of rocprofv3 would be read."""
    folder, slash, name = path.rpartition("/")
    return [f"{folder}{slash}{kernels}" for kernels in rocprofv3_csv.kernels_names(name)]


def _under(url: str) -> list[str]:
    """The files under a URL; which of them are traces shows where they are read."""
    system, prefix = filesystem(url)
    with errors_of(url):
        files = [Path(name) for name in system.find(prefix)]
    shown = sorted((path for path in files if not path.name.startswith(".")), key=_natural)
    if not shown:
        raise FusionScopeError(f"There is no file under {url}: give the folder into which the profiler wrote.")
    return [str(system.unstrip_protocol(str(path))) for path in shown]


def traces_in(folder: Path) -> Inputs:
    """The traces in a folder: files whose content says so, one for each recording."""
    files = _files(folder)
    traces = [path for path in files if nsys_parquet.is_folder(path) or detect.is_trace(path)]
    if not traces:
        raise FusionScopeError(
            f"{folder} holds no trace among its {len(files)} files: give the folder into which the profiler wrote, or "
            "the files themselves."
        )
    best: dict[Path, Path] = {}
    for path in sorted(traces, key=_preference):
        best.setdefault(_recording(path), path)
    left_out = [path for path in traces if path not in best.values()]
    notes = [
        f"{path.relative_to(folder)} was not read: {best[_recording(path)].name} holds the same recording."
        for path in left_out
    ]
    return Inputs(sorted(best.values(), key=_natural), notes)


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    # Links are not followed: a trace folder must not lead out of itself, nor in a circle.
    for place, folders, names in os.walk(folder):
        tables = [name for name in folders if nsys_parquet.is_folder(Path(place, name))]
        found += [Path(place, name) for name in tables]
        folders[:] = sorted(name for name in folders if name not in tables and not name.startswith("."))
        found += [Path(place, name) for name in names if not name.startswith(".") and Path(place, name).is_file()]
        if len(found) > _MOST_ENTRIES:
            raise FusionScopeError(f"{folder} holds more than {_MOST_ENTRIES} files: give a folder of traces alone.")
    return sorted(found, key=_natural)


def _recording(path: Path) -> Path:
    """What the forms of one recording have in common."""
    return path.with_name(_FORM.sub("", path.name))


def _preference(path: Path) -> int:
    match = _FORM.search(path.name)
    return next((n for n, form in enumerate(_FORMS) if match and re.fullmatch(form, match[1])), -1)


def _natural(path: str | Path) -> list[tuple[int, str]]:
    """rank2 before rank10."""
    return [(int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _from_stdin(stack: contextlib.ExitStack) -> Path:
    if sys.stdin.isatty():
        raise FusionScopeError("- reads a trace from standard input, and that is the terminal: pipe a file into it.")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusionscope-")))
    path = folder / "stdin"
    try:
        with open(path, "wb") as file:
            spool(sys.stdin.buffer, file, folder, "Standard input")
    except OSError as error:
        raise FusionScopeError(f"Standard input cannot be read ({error}): give the file's path.") from error
    return path
