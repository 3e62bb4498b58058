"""Runs and traces at an S3 URL: the real protocol, over loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytest.importorskip("boto3")

from literal_traces import FUSED_RUN, SPLIT, kernels
from s3_server import s3_bucket

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.remote import filesystem, local_copy
from fusionscope.profiler.remote_store import RemoteStore, open_store
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.store import Store, UnknownRun
from fusionscope.profiler.trace import Trace


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    with s3_bucket(monkeypatch, "traces") as url:
        yield url


def another_machine(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> Store:
    """The same store from a machine that has nothing of it."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda _: str(folder))
    return open_store(url)


def test_a_file_of_a_url_is_here_under_its_name_and_gone_afterwards(bucket: str) -> None:
    system, _ = filesystem(bucket)
    system.pipe_file("traces/x/rank3.json", b"[]")
    with local_copy(f"{bucket}/x/rank3.json") as path:
        assert (path.name, path.read_bytes()) == ("rank3.json", b"[]")
    assert not path.exists()
    with pytest.raises(FusionScopeError, match=r"rank4\.json cannot be reached"), local_copy(f"{bucket}/x/rank4.json"):
        pass


def test_a_run_saved_there_opens_on_another_machine(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = open_store(f"{bucket}/runs/")
    assert isinstance(here, RemoteStore)
    saved = here.save(RunInfo(name="split"), Trace(kernels=kernels([SPLIT])))
    other = another_machine(monkeypatch, tmp_path / "other", f"{bucket}/runs")
    assert [listed.id for listed in other.list()][:1] == [saved.info.id]
    found = other.load("split")
    assert found.info == saved.info
    assert found.trace.kernels["name"].tolist() == saved.trace.kernels["name"].tolist()
    with pytest.raises(UnknownRun, match="s3://traces/runs"):
        other.load("none")


def test_an_upload_that_breaks_off_leaves_no_run(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store(f"{bucket}/runs")
    assert isinstance(store, RemoteStore)
    put, sent = store._system.put_file, []

    def breaks(source: str, target: str, **more: Any) -> None:
        if len(sent) == 3:
            raise ConnectionError("the line is dead")
        sent.append(target)
        put(source, target, **more)

    monkeypatch.setattr(store._system, "put_file", breaks)
    with pytest.raises(FusionScopeError, match="the line is dead"):
        store.save(RunInfo(name="lost"), Trace(kernels=kernels([SPLIT])))
    monkeypatch.setattr(store._system, "put_file", put)
    examples = {listed.id for listed in Store(tmp_path / "none").list()}
    assert {listed.id for listed in store.list()} == examples
    store.save(RunInfo(name="lost"), Trace(kernels=kernels([FUSED_RUN])))
    assert [listed.info.name for listed in store.list() if listed.info and listed.id not in examples] == ["lost"]


def test_a_run_that_lost_a_file_there_is_named_as_broken(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store(f"{bucket}/runs")
    assert isinstance(store, RemoteStore)
    saved = store.save(RunInfo(name="split"), Trace(kernels=kernels([SPLIT])))
    store._system.rm_file(f"traces/runs/{saved.info.id}/kernels.parquet")
    other = another_machine(monkeypatch, tmp_path / "other", f"{bucket}/runs")
    with pytest.raises(BrokenRun, match=r"kernels\.parquet"):
        other.load("split")


def test_a_run_removed_there_is_forgotten_here(bucket: str) -> None:
    store = open_store(f"{bucket}/runs")
    assert isinstance(store, RemoteStore)
    saved = store.save(RunInfo(name="split"), Trace(kernels=kernels([SPLIT])))
    store._system.rm(f"traces/runs/{saved.info.id}", recursive=True)
    with pytest.raises(UnknownRun):
        store.load(saved.info.id)


def test_a_tag_given_on_one_machine_is_found_on_another(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = open_store(f"{bucket}/runs")
    saved = here.save(RunInfo(name="split"), Trace(kernels=kernels([SPLIT])))
    other = another_machine(monkeypatch, tmp_path / "other", f"{bucket}/runs")
    assert other.load("split").info.tags == []
    here.tag("split", ["main"])
    assert other.load("tag:main").info.id == saved.info.id
    assert other.load("split").info.tags == ["main"]


def test_a_kind_of_url_that_nobody_knows() -> None:
    with pytest.raises(FusionScopeError, match="nosuch://x"):
        open_store("nosuch://x/runs")


def test_a_folder_stays_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(open_store(tmp_path)) is Store
    monkeypatch.setenv("FUSIONSCOPE_STORE", str(tmp_path / "x"))
    assert open_store().place == str(tmp_path / "x")
