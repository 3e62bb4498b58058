"""The runs of a store as the pages ask for them: by known id only, read once until their files change."""

from __future__ import annotations

import builtins
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.compare import Comparison, compare
from fusionscope.analysis.knockout import Ceiling
from fusionscope.analysis.predictions import Prediction, knocked_out, knockouts, pairs, prediction
from fusionscope.analysis.ruleset import Source
from fusionscope.analysis.verdict import MARGIN
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import TAG, Listed, Run, Store, UnknownRun, example_runs

T = TypeVar("T")

#: How many answers (runs, attributions, comparisons) are kept in memory.
KEPT = 48
#: The most pairs that the accuracy page reads, newest first: each costs two runs to load.
MOST_PAIRS = 40


class Library:
    """Runs, attributions and comparisons; everything is computed by `analysis`, this only remembers it."""

    def __init__(self, store: Store, rules: Iterable[Source] = ()) -> None:
        self.store = store
        self.rules = tuple(rules)
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def list(self) -> builtins.list[Listed]:
        """Every run, the newest first and the shipped examples last; read anew, so that new runs appear."""
        listed = self.store.list()
        shipped = example_runs()
        own = [item for item in listed if shipped.get(item.id) != item.path]
        return own[::-1] + [item for item in listed if shipped.get(item.id) == item.path]

    def infos(self) -> builtins.list[RunInfo]:
        """What is known of every readable run, in the order of `list`; each answers to the id of its folder."""
        return [msgspec.structs.replace(item.info, id=item.id) for item in self.list() if item.info is not None]

    def find(self, ref: str) -> Listed:
        """The run with this id, the only one with this name, or the newest with the tag of `tag:NAME`.

        A path is none of these, so no text leaves the store. Raises UnknownRun.
        """
        listed = self.store.list()
        if ref.startswith(TAG):
            tagged = [item for item in listed if item.info is not None and ref.removeprefix(TAG) in item.info.tags]
            found = sorted(tagged, key=lambda item: (item.info.created if item.info else "", item.id))[-1:]
        else:
            found = [item for item in listed if item.id == ref] or [
                item for item in listed if item.info is not None and item.info.name == ref
            ]
        if len(found) != 1:
            many = f"names {len(found)} runs" if found else "is no run of this store"
            raise UnknownRun(f"{ref!r} {many}: choose one on the page of all runs.")
        return found[0]

    def id_of(self, ref: str) -> str:
        """The id of the run that `ref` names; `ref` itself where it names none, for the page to say so."""
        try:
            return self.find(ref).id
        except UnknownRun:
            return ref

    def tag(self, refs: Iterable[str], name: str, remove: bool) -> None:
        """Add a tag to runs of the store, or remove it. Raises FusionScopeError, also for a shipped example."""
        for ref in refs:
            self.store.tag(self.find(ref).id, [name], remove)

    def run(self, ref: str) -> Run:
        """A run with its tables. Raises UnknownRun or BrokenRun."""
        found = self.find(ref)

        def load() -> Run:
            run = self.store.load(found.id)
            return replace(run, info=msgspec.structs.replace(run.info, id=found.id))

        return self._remember(("run", found.id), [found.path], load)

    def analysed(self, ref: str, rank: int = 0, forward: str = "") -> Analysed:
        """One forward of one rank, attributed. Raises FusionScopeError."""
        found = self.find(ref)
        key = ("analysed", found.id, rank, forward)
        return self._remember(
            key, [found.path], lambda: analyse(self.run(ref), rank=rank, forward=forward or None, rules=self.rules)
        )

    def comparison(self, base: str, candidate: str, margin: float = MARGIN, rank: int = 0) -> Comparison:
        """Two runs beside each other. Raises FusionScopeError."""
        sides = [self.find(ref) for ref in (base, candidate)]
        key = ("comparison", *(side.id for side in sides), margin, rank)
        return self._remember(
            key,
            [side.path for side in sides],
            lambda: compare(self.analysed(base, rank), self.analysed(candidate, rank), margin),
        )

    def predictions(self) -> tuple[builtins.list[Prediction], int]:
        """Predicted and measured of every pair that has both, and how many pairs were left out because of `MOST_PAIRS`.

        A pair that cannot be read or compared is left out: its runs' own pages say why.
        """
        told = pairs(self.infos())
        found = [self._prediction(base.id, candidate.id) for base, candidate in told[:MOST_PAIRS]]
        return [p for p in found if p is not None], max(len(told) - MOST_PAIRS, 0)

    def knocked_out(self, run: Analysed, boundary: str) -> Ceiling | None:
        """The newest measured ceiling of a kind in this run's program, None where none is stored."""
        for info in knockouts(self.infos(), run.info, boundary):
            try:
                return knocked_out(self.run(info.id), boundary)
            except FusionScopeError:
                continue
        return None

    def _prediction(self, base: str, candidate: str) -> Prediction | None:
        def predict() -> Prediction | None:
            try:
                return prediction(self.comparison(base, candidate))
            except FusionScopeError:
                return None

        paths = [self.find(ref).path for ref in (base, candidate)]
        return self._remember(("prediction", base, candidate), paths, predict)

    def _remember(self, key: tuple[Hashable, ...], folders: builtins.list[Path], make: Callable[[], T]) -> T:
        stamped = (*key, *(_stamp(folder) for folder in folders))
        with self._lock:
            if stamped in self._kept:
                self._kept.move_to_end(stamped)
                return self._kept[stamped]  # type: ignore[no-any-return]
        made = make()
        with self._lock:
            self._kept[stamped] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


def _stamp(folder: Path) -> tuple[int, ...]:
    """Changes when the run's files do."""
    times = []
    for path in (folder, folder / "run.json", folder / "kernels.parquet"):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(-1)
    return tuple(times)
