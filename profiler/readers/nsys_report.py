"""Nsight Systems reports (.nsys-rep): a format that only nsys itself reads, so it is asked to export them."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import nsys_sqlite
from fusionscope.profiler.trace import Trace

#: Long enough for a report of many GB.
SECONDS = 1800


def is_report(path: Path) -> bool:
    """Whether a file is a report. Its format is not public, so here the name must tell."""
    return path.suffix in (".nsys-rep", ".qdrep")


def read(path: str | Path) -> Trace:
    """The tables of one report. Raises UnreadableTrace where nsys is not installed, fails, or takes too long."""
    from fusionscope.profiler.capture import nsys

    path = Path(path)
    by_hand = f"nsys export --type sqlite {path.name}"
    program = nsys.find()
    if program is None:
        raise UnreadableTrace(
            f"{path} is an Nsight Systems report and nsys is not installed here: run `{by_hand}` on the machine where "
            "it was recorded and give the .sqlite, or name nsys in $NSYS."
        )
    with tempfile.TemporaryDirectory(prefix="fusionscope-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        command = [str(program), "export", "--type=sqlite", f"--output={target}", "--force-overwrite=true"]
        try:
            done = subprocess.run(
                [*command, str(path.absolute())], capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreadableTrace(f"{path} could not be exported ({error}): run `{by_hand}` by hand.") from error
        if done.returncode != 0 or not target.is_file():
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1][:200]
            raise UnreadableTrace(
                f"{path} could not be exported by {program} ({said}): a report must be opened by an nsys that is not "
                f"older than the one that wrote it; run `{by_hand}` where it was recorded and give the .sqlite."
            )
        try:
            return nsys_sqlite.read(target)
        except UnreadableTrace as error:
            raise UnreadableTrace(str(error).replace(str(target), str(path))) from error
