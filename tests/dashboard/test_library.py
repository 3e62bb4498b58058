"""Runs by known id only, read once until they change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from literal_traces import SPLIT, kernels

from fusionscope.dashboard import library as module
from fusionscope.dashboard.library import Library
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.store import Store, UnknownRun
from fusionscope.profiler.trace import Trace


def test_the_newest_run_comes_first_and_the_examples_last(library: Library) -> None:
    names = [item.info.name if item.info else item.id for item in library.list()]
    assert names[-3:] == ["example", "example-fused", "example-tp2"]
    ids = [item.id for item in library.list()][:-3]
    assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize("ref", ["", ".", "..", "../store", "/etc", "nothing", "2026"])
def test_no_text_of_a_url_leaves_the_store(library: Library, ref: str) -> None:
    with pytest.raises(UnknownRun, match="is no run of this store"):
        library.run(ref)


def test_a_path_to_a_real_run_is_no_id(library: Library, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = library.find("split")
    monkeypatch.chdir(folder.parent)
    for ref in (str(folder), f"./{folder.name}"):
        with pytest.raises(UnknownRun):
            library.run(ref)
    assert library.run(folder.name).info.name == "split"


def test_a_name_opens_a_run_unless_two_have_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trace = Trace(kernels=kernels([SPLIT]))
    first = store.save(RunInfo(name="same"), trace)
    library = Library(store)
    assert library.run("same").info.id == first.info.id
    store.save(RunInfo(name="same"), trace)
    with pytest.raises(UnknownRun, match="names 2 runs"):
        library.run("same")


def test_a_broken_run_is_listed_and_says_why(library: Library) -> None:
    (broken,) = [item for item in library.list() if item.info is None]
    with pytest.raises(BrokenRun, match=r"run\.json is damaged"):
        library.run(broken.id)


def test_a_run_is_read_once_and_again_when_its_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    run = store.save(RunInfo(name="r"), Trace(kernels=kernels([SPLIT])))
    library, loads = Library(store), []
    load = store.load
    monkeypatch.setattr(store, "load", lambda ref: loads.append(ref) or load(ref))
    first = library.analysed(run.info.id)
    assert library.analysed(run.info.id) is first
    assert loads == [run.info.id]
    os.utime(run.path / "run.json", ns=(1, 1))
    assert library.analysed(run.info.id) is not first
    assert len(loads) == 2


def test_no_more_is_kept_than_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    store = Store(tmp_path)
    runs = [store.save(RunInfo(name=f"r{k}"), Trace(kernels=kernels([SPLIT]))) for k in range(4)]
    library = Library(store)
    for run in runs:
        library.run(run.info.id)
    assert [key[1] for key in library._large.kept] == [run.info.id for run in runs[2:]]  # type: ignore[index]


def test_the_lowest_rank_that_was_traced_is_shown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    only = kernels([SPLIT]).assign(rank=3).astype({"rank": "int32"})
    run = store.save(RunInfo(name="one of four"), Trace(kernels=only))
    library = Library(store)
    assert library.analysed(run.info.id).forward.rank == 3
    with pytest.raises(FusionScopeError, match="no kernels of rank 0, it has rank 3"):
        library.analysed(run.info.id, 0)


def test_the_examples_predict_what_was_measured(library: Library) -> None:
    found, left = library.predictions()
    assert left == 0
    assert [(p.base.id, p.candidate.id, p.boundary) for p in found] == [("example", "example-fused", "mhc_post")]
    assert found[0].held
