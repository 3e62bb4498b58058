"""`boundary`: marks the sites of a boundary in any PyTorch model, for FusionScope to find in a trace.

    from fusionscope.fusion_runtime import boundary

    with boundary("ar_norm", site=17, layer=8):
        hidden, residual = all_reduce_then_norm(hidden, residual)

Off (the default) it does nothing. `FUSIONSCOPE_MARKS=FILE` in the environment, which `fusionscope capture` sets, or
`record()` in the program turn it on. While a graph is being captured it then notes which graph nodes the block adds
(rung 1); otherwise it opens a range that profilers see (NVTX, roctx or record_function; rung 2). Importing this module
imports no torch, and inside code that torch.compile traces nothing is marked.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from fusionscope.fusion_runtime.graph_nodes import captured_nodes

#: `FILE`, in which {rank} and {pid} are filled in, or `ranges` for ranges alone.
VARIABLE = "FUSIONSCOPE_MARKS"
PREFIX = "fusionscope.site"
_OFF = nullcontext()


@dataclass
class Mark:
    """One site in one captured graph: nodes `first` to `last`, the latter excluded. -1: not told."""

    boundary: str
    site: int
    layer: int
    subtype: str
    path: str
    capture: int
    first: int
    last: int

    @property
    def first_node(self) -> int:
        """The same as `first`, by the name that the decode forward's recorder has for it."""
        return self.first

    @property
    def last_node(self) -> int:
        """The same as `last`."""
        return self.last


@dataclass
class Marks:
    """What was marked. With a `file` every site is appended at once, so that a killed process has lost nothing."""

    rows: list[Mark] = field(default_factory=list)
    file: str = ""
    _open: TextIO | None = None
    _process: int = 0
    _captures: dict[int, int] = field(default_factory=dict)
    _counts: dict[tuple[int, str], int] = field(default_factory=dict)

    @contextmanager
    def site(self, boundary: str, site: int, layer: int, subtype: str, path: str) -> Iterator[None]:
        """Brackets one site; sites may nest."""
        before = captured_nodes()
        if before is None:
            with _range(f"{PREFIX}|{boundary}|{subtype}|{layer}|{path}"):
                yield
            return
        capture = self._captures.setdefault(before[0], len(self._captures))
        count = self._counts.get((capture, boundary), 0)
        self._counts[capture, boundary] = count + 1
        yield
        after = captured_nodes()
        if after is not None and after[0] == before[0] and after[1] > before[1]:
            number = count if site < 0 else site
            self._add(Mark(boundary, number, layer, subtype, path, capture, before[1], after[1]))

    def _add(self, mark: Mark) -> None:
        self.rows.append(mark)
        if not self.file:
            return
        try:
            if self._open is None or self._process != os.getpid():
                self._open_file()
            assert self._open is not None
            self._open.write(json.dumps(vars(mark)) + "\n")
        except OSError as error:
            # The model must run on, marked or not.
            warnings.warn(f"Boundaries cannot be written to {self.file} ({error.strerror}).", stacklevel=4)
            self.file = ""

    def _open_file(self) -> None:
        """A file of this process: after a fork the child has one of its own."""
        self._process = os.getpid()
        path = Path(self.file.replace("{pid}", str(self._process)).replace("{rank}", str(_rank())))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Line by line, since engines end their workers with a signal.
        self._open = path.open("w", encoding="utf-8", buffering=1)
        self._open.write(json.dumps({"fusionscope_marks": 1, "rank": _rank(), "pid": self._process}) + "\n")

    def entries(self) -> list[dict[str, Any]]:
        """The provenance, as `fusionscope import --provenance` reads it: one entry a site."""
        rank = _rank()
        return [
            {
                "boundary": m.boundary,
                "site": m.site,
                "subtype": m.subtype,
                "layer": m.layer,
                "path": m.path,
                "capture": m.capture,
                "rank": rank,
                "node_index_ranges_half_open": [[m.first, m.last]],
            }
            for m in self.rows
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a *.nodes.json for `fusionscope import --provenance`."""
        Path(path).write_text(json.dumps(self.entries(), indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._open is not None:
            self._open.close()
            self._open = None


_active: Marks | None = None


def boundary(
    name: str, site: int = -1, *, layer: int = -1, subtype: str = "", path: str = ""
) -> AbstractContextManager[None]:
    """Marks what runs inside as one site of the boundary `name`.

    `site` is its number among the sites of that boundary in the forward (-1: in the order of the code), `layer` the
    model's layer, `path` the implementation that runs. Blocks with the same name and site in one graph are one site.
    """
    if _active is None or _tracing():
        return _OFF
    return _active.site(name, site, layer, subtype, path)


@contextmanager
def record(file: str = "") -> Iterator[Marks]:
    """Turns `boundary` on inside; what it yields has the marks. `file` as in $FUSIONSCOPE_MARKS."""
    global _active
    before, _active = _active, Marks(file=file)
    marks = _active
    try:
        yield marks
    finally:
        _active = before
        marks.close()


def _tracing() -> bool:
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    return bool(compiler is not None and compiler.is_compiling())


@contextmanager
def _range(name: str) -> Iterator[None]:
    """A range for whichever profiler is there: record_function for torch's, NVTX (on ROCm: roctx) for the others."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    nvtx = torch.cuda.nvtx if torch.cuda.is_available() else None
    if nvtx is not None:
        nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if nvtx is not None:
            nvtx.range_pop()


def _rank() -> int:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdigit() else 0


def _from_environment() -> None:
    global _active
    given = os.environ.get(VARIABLE, "")
    if given:
        _active = Marks(file="" if given == "ranges" else given)
        atexit.register(_active.close)


_from_environment()
