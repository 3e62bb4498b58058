"""Files that a job of somebody else's code wrote: data to distrust, of which known names alone are read."""

from __future__ import annotations

from pathlib import Path

from fusionscope.cli.ci import number
from fusionscope.cli.pairing import compared
from fusionscope.profiler.errors import FusionScopeError

#: Pairs of runs that are looked for.
PAIRS = 40


def pull_request(folder: Path) -> int:
    """The number in the file `pr`. Raises FusionScopeError where it holds anything else."""
    with _file(folder / "pr").open("rb") as file:
        raw = file.read(32)
    return number(raw.decode("ascii", errors="replace").strip())


def summary(folder: Path, title: str, margin: float, rules: list[Path] | None) -> str:
    """The summary made again from the packed runs: their names and texts are data in it, as in any summary.

    Raises FusionScopeError where there are none, or they cannot be read.
    """
    from fusionscope.analysis.summary import Options, written

    sides: tuple[list[str], list[str]] = ([], [])
    for place in range(PAIRS):
        base, candidate = (folder / f"{side}-{place}.tar" for side in ("base", "candidate"))
        if not base.exists():
            break
        sides[0].append(str(_file(base)))
        sides[1].append(str(_file(candidate)))
    if not sides[0]:
        raise FusionScopeError(f"{folder} holds no base-0.tar and candidate-0.tar, as `fusionscope ci --out` writes.")
    return str(written(compared(*sides, margin, None, rules=rules), Options(margin, title), "md"))


def text(file: Path) -> str:
    """A summary that this job wrote. Raises FusionScopeError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FusionScopeError(f"{file} cannot be read ({why}): write it with `fusionscope ci --out`.") from error


def _file(path: Path) -> Path:
    """A plain file: a link in somebody's files could lead to any of ours."""
    if path.is_symlink() or not path.is_file():
        raise FusionScopeError(f"{path} is no plain file; upload the folder that `fusionscope ci --out` wrote.")
    return path
