"""Runs as one file: what goes in comes out, and nothing else does."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pandas as pd
import pytest

from fusionscope.profiler import packed
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.imported import packed_run
from fusionscope.profiler.packed import BadPack, is_packed, pack, unpacked
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store, UnknownRun
from fusionscope.profiler.trace import Trace, table

TRACE = Trace(kernels=table("kernels", {"name": ["a"], "start_ns": [2**60 + 1], "duration_ns": [7]}))


@pytest.fixture
def runs(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def folder(runs: Store) -> Path:
    return runs.save(RunInfo(name="n", model="m"), TRACE).path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()


@pytest.mark.parametrize("ending", [".tar", ".zip"])
def test_a_packed_run_loads_from_a_file_and_from_urls(
    runs: Store, folder: Path, tmp_path: Path, server: str, ending: str
) -> None:
    file = tmp_path / f"run{ending}"
    pack(folder, file)
    for ref in (str(file), file.as_uri(), f"{server}/run{ending}", f"{server}/run{ending}?token=x"):
        loaded = Store(tmp_path / "other").load(ref)
        assert (loaded.info.name, loaded.info.model) == ("n", "m")
        pd.testing.assert_frame_equal(loaded.trace.kernels, TRACE.kernels)


def test_packing_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for ending in (".tar", ".zip"):
        one, two = tmp_path / f"1{ending}", tmp_path / f"2{ending}"
        pack(folder, one)
        pack(folder, two)
        assert one.read_bytes() == two.read_bytes()
    with pytest.raises(FusionScopeError, match=r"must end in \.tar or \.zip"):
        pack(folder, tmp_path / "run.rar")
    assert sorted(p.name for p in tmp_path.glob("*.partial")) == []


def test_an_archive_of_the_folder_itself_is_a_packed_run(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "run.tar", "w") as archive:
        archive.add(folder, arcname=folder.name)
    assert Store(tmp_path).load(str(tmp_path / "run.tar")).info.name == "n"


def entry(archive: tarfile.TarFile, name: str, data: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    archive.addfile(info, io.BytesIO(data))


def test_only_the_files_of_a_run_are_taken_and_none_leaves_its_folder(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "evil.tar"
    with tarfile.open(file, "w") as archive:
        for name in ("../run.json", "../../evil", "/tmp/run.json/../evil", "a/b/run.json", "evil.py"):
            entry(archive, name, b"evil")
        entry(archive, "trace.json", b"", tarfile.SYMTYPE, "/etc/passwd")
        for name in packed.FILES:
            entry(archive, name, (folder / name).read_bytes())
    before = sorted(tmp_path.rglob("*"))
    out = unpacked(str(file))
    assert sorted(p.name for p in out.iterdir()) == sorted(packed.FILES)
    assert not any(p.is_symlink() for p in out.iterdir()) and (out / "run.json").read_bytes() != b"evil"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("ending", [".tar", ".zip"])
def test_more_bytes_than_a_run_may_have_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    file = tmp_path / f"bomb{ending}"
    pack(folder, file)
    monkeypatch.setattr(packed, "LARGEST", 1000)
    with pytest.raises(BadPack, match="larger than a run may be"):
        unpacked(str(file))
    monkeypatch.setattr(packed, "LONGEST", 1000)
    with pytest.raises(BadPack, match="larger than a run may be"):
        unpacked(file.as_uri())


def test_the_same_file_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("run.json", (folder / "run.json").read_bytes())
        archive.writestr("x/run.json", b"{}")
    with pytest.raises(BadPack, match=r"holds run\.json twice"):
        unpacked(str(tmp_path / "twice.zip"))


def test_what_is_no_packed_run_is_one_sentence(tmp_path: Path, server: str) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    (tmp_path / "text.tar").write_text("no archive")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    for ref in (str(tmp_path / "text.zip"), str(tmp_path / "text.tar"), str(tmp_path / "empty.tar"),
                f"{server}/none.tar", "http://127.0.0.1:9/run.tar"):  # fmt: skip
        with pytest.raises(BadPack, match=r"text\.zip|text\.tar|empty\.tar|none\.tar|run\.tar"):
            Store(tmp_path).load(ref)
    with pytest.raises(UnknownRun):
        Store(tmp_path).load("nothing.tar")


def test_which_references_are_packed() -> None:
    assert [is_packed(ref) for ref in ("a.tar", "https://x/a.ZIP?b=c", "a", "a.tar.gz", "tag:x")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_a_tag_names_the_newest_run_that_has_it(runs: Store) -> None:
    saved = [runs.save(RunInfo(name=name, created=f"2026-01-0{day}T00:00:00+00:00"), TRACE)
             for name, day in (("old", 1), ("new", 3), ("other", 2))]  # fmt: skip
    for run in saved[:2]:
        assert runs.tag(run.info.id, ["main", "nightly"]).tags == ["main", "nightly"]
    assert runs.load("tag:main").info.name == "new"
    assert runs.tag("new", ["main"], remove=True).tags == ["nightly"]
    assert runs.load("tag:main").info.name == "old"
    assert runs.load("other").info.tags == [] and sorted(p.name for p in saved[0].path.glob(".*")) == []


def test_tags_that_cannot_be_are_refused(runs: Store, folder: Path) -> None:
    with pytest.raises(UnknownRun, match="fusionscope tag RUN main"):
        runs.load("tag:main")
    with pytest.raises(FusionScopeError, match="cannot be asked for"):
        runs.tag("n", ["two words"])
    with pytest.raises(FusionScopeError, match="is not in the store"):
        runs.tag("example", ["main"])


def test_other_urls_are_opened_by_fsspec(folder: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    pack(folder, tmp_path / "run.zip")
    with fsspec.open("memory://runs/run.zip", "wb") as file:
        file.write((tmp_path / "run.zip").read_bytes())
    assert Store(tmp_path).load("memory://runs/run.zip").info.name == "n"
    with pytest.raises(FusionScopeError, match=r"none\.zip"):
        Store(tmp_path).load("memory://runs/none.zip")


def test_a_table_of_endless_rows_in_a_small_file_is_refused(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = packed.MOST_ROWS // 100
    part = pa.table({"name": pa.array(["a"]).take(pa.array([0] * rows, pa.int8())).dictionary_encode()})
    with parquet.ParquetWriter(folder / "ranges.parquet", part.schema, compression="zstd") as writer:
        for _ in range(101):
            writer.write_table(part)
    pack(folder, tmp_path / "large.tar")
    assert (tmp_path / "large.tar").stat().st_size < 1 << 20
    with pytest.raises(BadPack, match="larger than a run may be"):
        unpacked(str(tmp_path / "large.tar"))


def test_a_packed_run_is_stored_without_its_tags(runs: Store, folder: Path, tmp_path: Path) -> None:
    runs.tag("n", ["main"])
    pack(folder, tmp_path / "n.zip")
    other = Store(tmp_path / "other")
    taken = packed_run(other, str(tmp_path / "n.zip"))
    assert (taken.info.name, taken.info.model, taken.info.tags) == ("n", "m", [])
    assert taken.info.id != folder.name and other.load("n").trace.kernels.equals(runs.load("n").trace.kernels)
    assert packed_run(other, str(tmp_path / "n.zip"), "again").info.name == "again"
    pack(runs.find("example"), tmp_path / "example.tar")
    assert packed_run(other, str(tmp_path / "example.tar")).info.name == ""


def test_a_pack_without_a_table_is_named_as_such(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bare.tar", "w") as archive:
        archive.add(folder / "run.json", "run.json")
    with pytest.raises(BadPack, match=r"bare.tar lacks kernels.parquet, .*make it again"):
        unpacked(str(tmp_path / "bare.tar"))
