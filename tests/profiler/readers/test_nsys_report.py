"""Reports of Nsight Systems, with a stand-in for nsys that checks how it is called."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import nsys_report, read_trace

NSYS = """#!{python}
import shutil, sys
program, command, kind, output, force, report = sys.argv
assert (command, kind, force) == ("export", "--type=sqlite", "--force-overwrite=true"), sys.argv
if open(report).read() != "a report":
    sys.exit("this report is newer than this nsys")
shutil.copy({export!r}, output.removeprefix("--output="))
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    export = tmp_path / "export.sqlite"
    connection = sqlite3.connect(export)
    connection.executescript(
        """CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (1, 'gemm');
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
            start, "end", deviceId, streamId, correlationId, globalPid, demangledName);
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 4, 0, 7, 9, 922747600, 1);"""
    )
    connection.commit()
    connection.close()
    program = tmp_path / "nsys"
    program.write_text(NSYS.format(python=sys.executable, export=str(export)))
    program.chmod(0o755)
    monkeypatch.setenv("NSYS", str(program))
    return tmp_path


def test_a_report_is_exported_and_read(nsys: Path) -> None:
    report = nsys / "decode_rank3.nsys-rep"
    report.write_text("a report")
    trace = read_trace(report)
    assert list(trace.kernels["name"]) == ["gemm"] and list(trace.kernels["rank"]) == [3]


def test_what_nsys_says_is_passed_on(nsys: Path) -> None:
    report = nsys / "new.nsys-rep"
    report.write_text("a newer report")
    with pytest.raises(UnreadableTrace, match=r"this report is newer than this nsys.*nsys export --type sqlite new"):
        read_trace(report)


def test_nsys_that_does_not_end(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_report, "SECONDS", 0.2)
    (nsys / "nsys").write_text("#!/bin/sh\nexec sleep 20\n")
    report = nsys / "x.nsys-rep"
    report.write_text("a report")
    with pytest.raises(UnreadableTrace, match="could not be exported"):
        read_trace(report)


def test_without_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS", str(tmp_path / "none"))
    report = tmp_path / "x.nsys-rep"
    report.write_text("a report")
    with pytest.raises(
        UnreadableTrace, match=r"run `nsys export --type sqlite x\.nsys-rep` on the machine where it was"
    ):
        read_trace(report)


def test_a_pointer_with_the_name_of_a_report(tmp_path: Path) -> None:
    report = tmp_path / "x.nsys-rep"
    report.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UnreadableTrace, match="Git LFS pointer"):
        read_trace(report)
