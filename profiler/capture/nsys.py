"""Tracing with Nsight Systems: where it is, whether its importer can start, and how a rank runs under it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fusionscope.profiler.capture.plan import CaptureError

#: Nsight Compute ships an nsys of its own.
_INSTALLATIONS = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-compute/*/host/*/nsys",
    "/usr/local/cuda*/bin/nsys",
)
_PACKAGES = {
    "libdw.so.1": "libdw1",
    "libelf.so.1": "libelf1",
    "libxcb.so.1": "libxcb1",
    "libX11.so.6": "libx11-6",
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libnss3.so": "libnss3",
}
HELP = (
    "Install Nsight Systems from https://developer.nvidia.com/nsight-systems, put nsys on PATH or name it in $NSYS, "
    "or use --profiler cupti."
)


def find() -> Path | None:
    """nsys in $NSYS, on PATH, or in an installation of Nsight Systems or Nsight Compute (the newest)."""
    given = os.environ.get("NSYS")
    if given:
        return Path(given) if os.access(given, os.X_OK) else None
    on_path = shutil.which("nsys")
    if on_path:
        return Path(on_path)
    root = Path("/")
    found = [path for pattern in _INSTALLATIONS for path in root.glob(pattern[1:]) if os.access(path, os.X_OK)]
    return max(found, key=_version_in, default=None)


def unavailable() -> str:
    """Why Nsight Systems cannot be used, or "" where it can."""
    found = find()
    if found is None:
        given = os.environ.get("NSYS")
        return f"$NSYS names {given}, which cannot be run" if given else "nsys is not installed"
    if missing := missing_libraries(found):
        return f"the importer of {found} cannot start: {_libraries(missing)}"
    return ""


def require() -> Path:
    """The nsys to use. Raises CaptureError with what is missing and the way to get it."""
    found = find()
    if found is None:
        raise CaptureError(f"--profiler nsys cannot be used: {unavailable()}. {HELP}")
    if missing := missing_libraries(found):
        raise CaptureError(f"--profiler nsys cannot be used: {unavailable()}. {install(missing)}")
    return found


def version(nsys: Path) -> str:
    """What `nsys --version` says, "" where it says nothing."""
    try:
        said = subprocess.run([str(nsys), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\d+(\.\d+)+(-\w+)?", said.stdout)
    return match[0] if match else ""


def missing_libraries(nsys: Path) -> list[str]:
    """Shared libraries that nsys' importer needs and the machine lacks, as ldd names them."""
    importer = _importer(nsys)
    if importer is None or shutil.which("ldd") is None:
        return []
    # nsys starts its importer with its own folder on the library path.
    env = {**os.environ, "LD_LIBRARY_PATH": f"{importer.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    said = subprocess.run(["ldd", str(importer)], capture_output=True, text=True, env=env, timeout=60, check=False)
    return list(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", said.stdout, flags=re.MULTILINE)))


def _importer(nsys: Path) -> Path | None:
    real = nsys.resolve()
    for folder in list(real.parents)[:3]:
        for pattern in ("QdstrmImporter", "host*/QdstrmImporter", "*/QdstrmImporter"):
            found = sorted(folder.glob(pattern))
            if found:
                return found[0]
    return None


def _libraries(missing: list[str]) -> str:
    noun = "library" if len(missing) == 1 else "libraries"
    return f"it lacks the {noun} {', '.join(missing)}"


def install(missing: list[str]) -> str:
    known = [_PACKAGES[name] for name in missing if name in _PACKAGES]
    if known:
        return f"On Debian and Ubuntu: apt-get install {' '.join(known)}. Or use --profiler cupti."
    return "Install the packages that hold them, or use --profiler cupti."


def trace_file(folder: Path, rank: int) -> Path:
    """Where the trace of a rank lands."""
    return folder / f"rank{rank}.sqlite"


def prefix(nsys: Path, folder: Path, processes: int, mode: str = "node") -> list[str]:
    """What goes before a rank's own command; only what lies between start and stop is recorded.

    `mode` "node" records every kernel of a graph, "graph" one row a replay, at less cost.
    """
    # With several ranks each has its own nsys, which reads the rank from the environment of its process.
    rank = "0" if processes == 1 else "%q{RANK}"
    return [
        str(nsys),
        "profile",
        "--trace=cuda,nvtx",
        f"--cuda-graph-trace={mode}",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--export=sqlite",
        "--force-overwrite=true",
        f"--output={folder}/rank{rank}",
    ]


def check_output(nsys: Path, folder: Path, rank: int) -> Path:
    """The rank's exported trace. Raises CaptureError where the importer left none, with the reason if it shows."""
    path = trace_file(folder, rank)
    if path.is_file():
        return path
    if not any(folder.glob(f"rank{rank}.qdstrm")):
        raise CaptureError(f"Nsight Systems recorded nothing for rank {rank}. {HELP}")
    if missing := missing_libraries(nsys):
        raise CaptureError(
            f"Nsight Systems recorded rank {rank} but cannot import it: {_libraries(missing)}. {install(missing)}"
        )
    raise CaptureError(
        f"Nsight Systems recorded rank {rank} but its importer did not finish; `{nsys} --version` and "
        "`nsys status --environment` may say why. Or use --profiler cupti."
    )


@contextmanager
def recording() -> Iterator[None]:
    """In a rank that runs under nsys: the capture range around what runs inside."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.cudart().cudaProfilerStop()


def _version_in(path: Path) -> tuple[int, ...]:
    for part in path.parts:
        if re.fullmatch(r"\d+(\.\d+)+", part):
            return tuple(int(number) for number in part.split("."))
    return ()
