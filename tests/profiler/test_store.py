"""The run store: whole runs or none, and exact answers to what a reference names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import parquet

from fusionscope.profiler import runinfo, store
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import BrokenRun, Decline, RunInfo
from fusionscope.profiler.store import Store, UnknownRun
from fusionscope.profiler.trace import TABLES, Trace, table


def small_trace() -> Trace:
    """Two kernels, one launch and one timing; times beyond what a float64 holds exactly."""
    return Trace(
        kernels=table("kernels", {"name": ["a", "b"], "start_ns": [2**60 + 1, 2**60 + 3], "duration_ns": [1, 7]}),
        launches=table("launches", {"name": ["cudaGraphLaunch"], "is_graph": [True]}),
        timings=table("timings", {"duration_ns": [5], "source": ["untraced"]}),
        machine={"gpu": "X"},
        warnings=("Something is doubtful.",),
        world_size=4,
    )


@pytest.fixture
def runs(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_a_run_comes_back_as_it_was(runs: Store) -> None:
    trace = small_trace()
    saved = runs.save(RunInfo(name="n", model="m", tp=4, declines=[Decline(boundary="ar_norm", layer=3)]), trace)
    loaded = runs.load(saved.info.id)
    assert loaded.info == saved.info
    assert loaded.path == runs.root / saved.info.id
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(loaded.trace, name), getattr(trace, name))
    assert (loaded.trace.machine, loaded.trace.warnings, loaded.trace.world_size) == (
        {"gpu": "X"},
        ("Something is doubtful.",),
        4,
    )


def test_a_run_is_found_by_id_prefix_name_and_path(runs: Store) -> None:
    saved = runs.save(RunInfo(name="mine"), small_trace())
    runs.save(RunInfo(name="other"), small_trace())
    for ref in (saved.info.id, "mine", str(saved.path), f"{saved.path}/"):
        assert runs.find(ref) == saved.path
    unique = next(saved.info.id[:n] for n in range(1, 23) if len(_starting(runs, saved.info.id[:n])) == 1)
    assert runs.find(unique) == saved.path


def _starting(runs: Store, prefix: str) -> list[str]:
    return [item.id for item in runs.list() if item.id.startswith(prefix)]


def test_an_ambiguous_name_or_prefix_names_the_ids(runs: Store) -> None:
    ids = [runs.save(RunInfo(name="twice"), small_trace()).info.id for _ in range(2)]
    for ref in ("twice", "20"):
        with pytest.raises(UnknownRun) as error:
            runs.find(ref)
        assert all(run_id in str(error.value) for run_id in ids)


@pytest.mark.parametrize("ref", ["", ".", "..", "../x", "no-such-run", "/no/such/folder"])
def test_what_names_no_run_is_an_error(runs: Store, ref: str) -> None:
    runs.save(RunInfo(), small_trace())
    with pytest.raises(FusionScopeError):
        runs.load(ref)


def test_ids_do_not_leave_the_store(runs: Store) -> None:
    outside = Store(runs.root.parent / "elsewhere").save(RunInfo(name="x"), small_trace())
    runs.save(RunInfo(name="inside"), small_trace())
    for ref in (outside.info.id, "x"):
        with pytest.raises(UnknownRun):
            runs.find(ref)


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "example", "example-fused", " padded", "tag:x", "-x", "a\nb", "a\x1b[31m", "a\u202eb"]
)
def test_a_name_that_could_not_be_found_again_is_refused(runs: Store, name: str) -> None:
    with pytest.raises(FusionScopeError, match="--name"):
        runs.save(RunInfo(name=name), small_trace())
    assert not runs.root.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no readable run.json"), (b"{", "damaged"), (b'{"tp": "four"}', "damaged"), (b"\xff", "damaged")],
)
def test_a_broken_run_is_listed_with_a_sentence(runs: Store, text: bytes | None, says: str) -> None:
    good = runs.save(RunInfo(name="good"), small_trace())
    bad = runs.save(RunInfo(name="bad"), small_trace())
    if text is None:
        (bad.path / "run.json").unlink()
    else:
        (bad.path / "run.json").write_bytes(text)
    listed = {item.id: item for item in runs.list()}
    assert listed[good.info.id].error == ""
    assert listed[bad.info.id].info is None
    assert says in listed[bad.info.id].error
    with pytest.raises(BrokenRun, match=says):
        runs.load(bad.info.id)


def test_a_damaged_table_is_a_sentence(runs: Store) -> None:
    saved = runs.save(RunInfo(), small_trace())
    (saved.path / "kernels.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(BrokenRun, match=r"kernels\.parquet cannot be read"):
        runs.load(saved.info.id)


def test_unknown_fields_are_ignored_and_a_newer_schema_is_refused(runs: Store) -> None:
    saved = runs.save(RunInfo(model="m"), small_trace())
    path = saved.path / "run.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "from_the_future": {"a": 1}}))
    assert runs.load(saved.info.id).info.model == "m"
    path.write_text(json.dumps({**data, "schema_version": runinfo.SCHEMA_VERSION + 1}))
    with pytest.raises(BrokenRun, match="update it"):
        runs.load(saved.info.id)


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert [item.id for item in Store(tmp_path / "none").list() if item.id not in store.EXAMPLES] == []
    assert not (tmp_path / "none").exists()


def test_a_store_that_cannot_be_written_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FusionScopeError, match="--store"):
        Store(tmp_path / "file" / "runs").save(RunInfo(), small_trace())


_KILLED_WRITER = textwrap.dedent(
    """
    import os, signal, sys
    from fusionscope.profiler import run_folder, store
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.trace import Trace, table

    done, plain = 0, run_folder.fsync

    def fsync(path):
        global done
        plain(path)
        done += 1
        if done == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    run_folder.fsync = fsync
    trace = Trace(kernels=table("kernels", {"name": ["a"], "duration_ns": [1]}))
    store.Store(sys.argv[1]).save(RunInfo(name="half"), trace)
    """
)


@pytest.mark.parametrize("step", [1, len(TABLES), len(TABLES) + 2, len(TABLES) + 3])
def test_a_killed_writer_leaves_no_run(runs: Store, step: int) -> None:
    """Killed after the first table, the last one, run.json, and the folder itself but before the rename."""
    child = subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(runs.root), str(step)], check=False)
    assert child.returncode == -signal.SIGKILL
    left = os.listdir(runs.root)
    assert len(left) == 1 and left[0].startswith(".writing-")
    assert _own(runs) == []
    with pytest.raises(UnknownRun):
        runs.load("half")


def test_what_killed_writers_left_is_swept_after_a_day(runs: Store) -> None:
    runs.root.mkdir(parents=True)
    for name, age in (("old", 2 * 86400), ("new", 60)):
        folder = runs.root / f".writing-{name}"
        folder.mkdir()
        stamp = folder.stat().st_mtime - age
        os.utime(folder, (stamp, stamp))
    runs.save(RunInfo(), small_trace())
    assert sorted(name for name in os.listdir(runs.root) if name.startswith(".")) == [".writing-new"]


def test_listing_while_runs_are_written_sees_whole_runs_only(runs: Store) -> None:
    stop, seen = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            seen.extend(item.error for item in runs.list())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for number in range(10):
            runs.save(RunInfo(name=str(number)), small_trace())
    finally:
        stop.set()
        watcher.join()
    assert set(seen) <= {""}
    assert len(_own(runs)) == 10


def _own(runs: Store) -> list[str]:
    return [item.id for item in runs.list() if item.id not in store.EXAMPLES]


def test_the_environment_is_recorded_without_secrets() -> None:
    given = {
        "NCCL_ALGO": "Ring",
        "VLLM_API_KEY": "k",
        "SGLANG_AUTH_TOKEN": "t",
        "TORCH_X": "1",
        "HOME": "/root",
        "FUSIONSCOPE_STORE": "/private",
        "FUSIONSCOPE_PASSWORD_FILE": "p",
    }
    assert runinfo.recorded_environment(given) == {"NCCL_ALGO": "Ring", "TORCH_X": "1"}


def test_labels_have_one_vocabulary_and_one_order() -> None:
    assert runinfo.ordered_labels({"incomplete", "cpu", "built-in model"}) == ["built-in model", "cpu", "incomplete"]
    with pytest.raises(ValueError, match="slow"):
        runinfo.ordered_labels({"slow"})


def test_the_store_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSIONSCOPE_STORE", str(tmp_path))
    assert Store().root == tmp_path
    monkeypatch.delenv("FUSIONSCOPE_STORE")
    assert Path(store.default_place()).parts[-2:] == ("fusionscope", "runs")


def test_what_pandas_noted_in_a_table_need_not_be_true(runs: Store) -> None:
    saved = runs.save(RunInfo(name="n"), small_trace())
    path = saved.path / "kernels.parquet"
    whole = parquet.read_table(path)
    parquet.write_table(whole.replace_schema_metadata({b"pandas": b'{"columns": [{}], "index_columns": ["x"]}'}), path)
    pd.testing.assert_frame_equal(runs.load("n").trace.kernels, saved.trace.kernels)


def test_a_run_that_cannot_be_tagged_says_why(runs: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = runs.save(RunInfo(name="kept"), Trace())
    with pytest.raises(FusionScopeError, match="ships with the package and is not in the store"):
        runs.tag("example", ["main"])

    def refuses(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuses)
    with pytest.raises(FusionScopeError, match=r"cannot be written \(Permission denied\), so the run takes no tag"):
        runs.tag(saved.info.id, ["main"])
