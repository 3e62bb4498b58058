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
from fusionscope.profiler.importing import ranks_of
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import RUN_ID, TAG, Listed, Run, Store, UnknownRun, example_runs

T = TypeVar("T")

#: How many runs with their tables, attributions and comparisons are kept in memory, and how many small answers.
KEPT, KEPT_SMALL = 16, 1000
#: The most pairs that the accuracy page reads, newest first: each costs two runs to load.
MOST_PAIRS = 40


class Library:
    """Runs, attributions and comparisons; everything is computed by `analysis`, this only remembers it."""

    def __init__(self, store: Store, rules: Iterable[Source] = ()) -> None:
        self.store = store
        self.rules = tuple(rules)
        self._large, self._small = _Memory(KEPT), _Memory(KEPT_SMALL)

    def list(self) -> builtins.list[Listed]:
        """Every run, the newest first and the shipped examples last; read anew, so that new runs appear."""
        listed = self.store.list()
        shipped = example_runs()
        own = [item for item in listed if shipped.get(item.id) != item.path]
        return own[::-1] + [item for item in listed if shipped.get(item.id) == item.path]

    def infos(self) -> builtins.list[RunInfo]:
        """What is known of every readable run, in the order of `list`; each answers to the id of its folder."""
        return [msgspec.structs.replace(item.info, id=item.id) for item in self.list() if item.info is not None]

    def find(self, ref: str) -> Path:
        """The folder of the run with this id, with this name alone, or the newest with the tag of `tag:NAME`.

        The folder's name is the run's id. A path is none of these, so no text leaves the store. Raises UnknownRun.
        """
        shipped = example_runs()
        if ref in shipped:
            return shipped[ref]
        if RUN_ID.fullmatch(ref):
            # Most links have an id: the other runs need not be looked at.
            return self._by_id(ref)
        listed = [item for item in self.store.list() if item.info is not None]
        if ref.startswith(TAG):
            tagged = [item for item in listed if item.info and ref.removeprefix(TAG) in item.info.tags]
            found = sorted(tagged, key=lambda item: (item.info.created if item.info else "", item.id))[-1:]
        else:
            found = [item for item in listed if item.info and item.info.name == ref]
        if len(found) != 1:
            raise _unknown(ref, len(found))
        return found[0].path

    def _by_id(self, ref: str) -> Path:
        if (self.store.root / ref).is_dir():
            return self.store.root / ref
        try:
            return self.store.find(ref)
        except UnknownRun:
            raise _unknown(ref) from None

    def id_of(self, ref: str) -> str:
        """The id of the run that `ref` names; `ref` itself where it names none, for the page to say so."""
        try:
            return self.find(ref).name
        except UnknownRun:
            return ref

    def tag(self, refs: Iterable[str], name: str, remove: bool) -> None:
        """Add a tag to runs of the store, or remove it. Raises FusionScopeError, also for a shipped example."""
        for ref in refs:
            self.store.tag(self.find(ref).name, [name], remove)

    def run(self, ref: str) -> Run:
        """A run with its tables. Raises UnknownRun or BrokenRun."""
        found = self.find(ref)

        def load() -> Run:
            run = self.store.load(found.name)
            return replace(run, info=msgspec.structs.replace(run.info, id=found.name))

        return self._large.remember(("run", found.name), [found], load)

    def analysed(self, ref: str, rank: int | None = None, forward: str = "") -> Analysed:
        """One forward of one rank (by default the lowest that was traced), attributed. Raises FusionScopeError."""
        found = self.find(ref)

        def attribute() -> Analysed:
            run = self.run(found.name)
            lowest = min(ranks_of(run.trace), default=0)
            return analyse(run, rank=lowest if rank is None else rank, forward=forward or None, rules=self.rules)

        return self._large.remember(("analysed", found.name, rank, forward), [found], attribute)

    def comparison(self, base: str, candidate: str, margin: float = MARGIN) -> Comparison:
        """The lowest ranks of two runs beside each other. Raises FusionScopeError."""
        sides = [self.find(ref) for ref in (base, candidate)]
        key = ("comparison", *(side.name for side in sides), margin)
        return self._large.remember(key, sides, lambda: compare(self.analysed(base), self.analysed(candidate), margin))

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

        paths = [self.find(ref) for ref in (base, candidate)]
        return self._small.remember(("prediction", base, candidate), paths, predict)


class _Memory:
    """Answers about run folders, made again when their files change; the one used longest ago goes first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, key: tuple[Hashable, ...], folders: Iterable[Path], make: Callable[[], T]) -> T:
        """What was made of these folders, or what `make` makes of them now."""
        stamped = (*key, *(_stamp(folder) for folder in folders))
        with self._lock:
            if stamped in self.kept:
                self.kept.move_to_end(stamped)
                return self.kept[stamped]  # type: ignore[no-any-return]
        made = make()
        with self._lock:
            self.kept[stamped] = made
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
        return made


def _unknown(ref: str, many: int = 0) -> UnknownRun:
    what = f"names {many} runs" if many else "is no run of this store"
    return UnknownRun(f"{ref!r} {what}: choose one on the page of all runs.")


def _stamp(folder: Path) -> tuple[int, ...]:
    """Changes when the run's files do."""
    times = []
    for path in (folder, folder / "run.json", folder / "kernels.parquet"):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            times.append(-1)
    return tuple(times)
