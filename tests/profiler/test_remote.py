"""Runs and traces at an S3 URL: the real protocol, over loopback."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import platformdirs
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytest.importorskip("boto3")

from literal_traces import FUSED_RUN, SPLIT, kernels
from rocprofv3_files import API, NEW, csv_kernel, write_csv
from s3_server import s3_bucket

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.inputs import gathered
from fusionscope.profiler.readers import rocprofv3_csv
from fusionscope.profiler.remote import filesystem, local_copy
from fusionscope.profiler.remote_store import RemoteStore, open_store
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.store import Store, UnknownRun
from fusionscope.profiler.trace import TABLES, Trace


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


def rocprofv3_run(bucket: str, folder: Path) -> dict[str, bytes]:
    """Two processes' files of rocprofv3, and what else lies there, in the bucket's x/ and in a folder."""
    call, calls = "HIP_RUNTIME_API,hipGraphLaunch,{},77,1,1,2", "hip_api_trace.csv"
    for pid in (55, 56):
        write_csv(
            folder / f"{pid}_kernel_trace.csv", NEW, *(csv_kernel(f"k{n}", 10 * n, 10 * n + 5, 1) for n in (1, 2))
        )
        write_csv(folder / f"{pid}_{calls}", API, call.format(pid))
    # Packed by itself, as rocprofv3 would not but people do.
    plain = folder / f"55_{calls}"
    (folder / f"55_{calls}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    write_csv(folder / "55_agent_info.csv", "Agent_Type,Product_Name", "GPU,AMD Instinct MI300X")
    (folder / "55_counter_collection.csv").write_text("not read\n")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    system, _ = filesystem(bucket)
    for name, content in files.items():
        system.pipe_file(f"traces/x/{name}", content)
    return files


def test_the_files_that_are_read_beside_a_kernel_trace_come_with_it_and_no_others(bucket: str, tmp_path: Path) -> None:
    files = rocprofv3_run(bucket, tmp_path)
    with local_copy(f"{bucket}/x/55_kernel_trace.csv", rocprofv3_csv.names_beside) as path:
        fetched = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    wanted = ("55_kernel_trace.csv", "55_hip_api_trace.csv.gz", "55_agent_info.csv")
    assert fetched == {name: files[name] for name in wanted}
    with local_copy(f"{bucket}/x/55_kernel_trace.csv") as path:
        assert [one.name for one in path.parent.iterdir()] == ["55_kernel_trace.csv"]


def test_rocprofv3_csv_at_a_url_is_read_as_from_a_folder(bucket: str, tmp_path: Path) -> None:
    rocprofv3_run(bucket, tmp_path)
    name = "55_kernel_trace.csv"
    there, here = import_files([f"{bucket}/x/{name}"]), import_files([tmp_path / name])
    assert len(there.launches) == 1 and there.machine["gpu"] == "AMD Instinct MI300X"
    assert set(there.kernels["process"]) == {55} and list(there.kernels["replay"]) == [0, 0]
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(there, table), getattr(here, table))
    system, _ = filesystem(bucket)
    system.rm_file("traces/x/55_counter_collection.csv")
    with gathered([f"{bucket}/x/"]) as inputs:
        assert inputs.paths == [f"{bucket}/x/{pid}_kernel_trace.csv" for pid in (55, 56)]


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
