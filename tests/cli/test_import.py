"""`fusionscope import` on the shared samples."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fake_traces
import pytest


def test_the_b200_trace_is_counted_exactly(fusionscope: Any, samples: Path) -> None:
    file = samples / "kineto_b200_eager_tp8.json.gz"
    answer = fusionscope(
        "import", file, "--model", "m", "--batch", 4, "--set", "branch=a=b", "--set", "x=", "--name", "b200", "--json"
    )
    assert answer.code == 0
    assert answer.json["labels"] == ["eager", "incomplete"]
    document = fusionscope("show", "b200", "--json").json
    assert document["run"] == answer.json["run"]
    assert (document["launches"], document["kernel_time_ns"], document["busy_time_ns"]) == (768, 10862916, 10793638)
    assert (document["graph_launches"], document["ranks"], document["devices"]) == (0, 1, 1)
    info = document["info"]
    assert info["settings"] == {"branch": "a=b", "x": ""}
    assert (info["model"], info["batch"], info["tp"], info["imported"]) == ("m", 4, -1, True)
    assert info["inputs"][0]["path"] == file.name
    assert info["inputs"][0]["bytes"] == file.stat().st_size
    assert len(info["inputs"][0]["sha256"]) == 64
    assert info["environment"] == {}


def test_provenance_and_one_arm_of_the_timings_are_kept(fusionscope: Any, samples: Path, tmp_path: Path) -> None:
    from fusionscope.profiler.store import Store

    folder = samples / "h200_ar_norm"
    answer = fusionscope(
        "import",
        folder / "split.nsys.sqlite",
        "--provenance",
        folder / "split.nodes.json",
        "--timings",
        f"{folder / 'untraced_abba.json'}:split",
        "--json",
    )
    assert (answer.code, answer.json["labels"]) == (0, [])
    run = Store(tmp_path / "store").load(answer.json["run"])
    assert len(run.trace.sites) == 90
    assert [i.path for i in run.info.inputs] == ["split.nsys.sqlite", "split.nodes.json", "untraced_abba.json"]
    rows = json.loads((folder / "untraced_abba.json").read_text())["rows"]
    assert len(run.trace.timings) == sum(row[2] == "split" for row in rows)
    shown = fusionscope("show", answer.json["run"], "--json").json
    assert (shown["launches"], shown["graph_launches"]) == (12 * 225, 12)


def test_a_graph_mode_trace_is_labelled(fusionscope: Any, samples: Path) -> None:
    answer = fusionscope("import", samples / "synthetic_nsys_2gpu_graph_mode.sqlite", "--json")
    assert "graph mode" in answer.json["labels"]
    assert "eager" not in answer.json["labels"]
    text = fusionscope("import", samples / "synthetic_nsys_2gpu_graph_mode.sqlite").out
    assert "--cuda-graph-trace=node" in text and "--timings" in text and "fusionscope attribute" not in text
    refused = fusionscope("attribute", answer.json["run"], "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "--cuda-graph-trace=node" in refused.err


def test_two_files_of_one_rank_are_refused(fusionscope: Any, samples: Path, tmp_path: Path) -> None:
    file = samples / "kineto_b200_eager_tp8.json.gz"
    answer = fusionscope("import", file, file, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count(file.name) == 2
    assert not (tmp_path / "store").exists()


def test_one_run_that_two_profilers_recorded(fusionscope: Any, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    fake_traces.nsys(folder / "both.sqlite", [55, 56])
    for rank in (0, 1):
        fake_traces.kineto(folder / f"rank{rank}.json", 55 + rank, rank)
    refused = fusionscope("import", folder, "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "--profiler nsys or --profiler torch" in refused.err and not (tmp_path / "store").exists()
    for profiler, inputs in (("nsys", ["both.sqlite"]), ("torch", ["rank0.json", "rank1.json"])):
        answer = fusionscope("import", folder, "--profiler", profiler, "--name", profiler, "--json")
        assert answer.code == 0
        info = fusionscope("show", profiler, "--json").json["info"]
        assert [file["path"] for file in info["inputs"]] == inputs
        left = {"both.sqlite", "rank0.json", "rank1.json"} - set(inputs)
        assert all(f"{name} was left out" in answer.err for name in left)
        assert fusionscope("ranks", profiler, "--json").json["world_size"] == 2


def test_a_profiler_that_recorded_none_of_the_traces(fusionscope: Any, tmp_path: Path) -> None:
    fake_traces.nsys(tmp_path / "x.sqlite", [55])
    answer = fusionscope("import", tmp_path / "x.sqlite", "--profiler", "rpd")
    assert answer.code == 2 and "No trace was recorded by --profiler rpd (x.sqlite by nsys)" in answer.err
    answer = fusionscope("import", tmp_path / "absent.sqlite", "--profiler", "perf")
    assert answer.code == 2 and "take nsys, torch, rocprofv3" in answer.err


@pytest.mark.parametrize("pair", ["novalue", "=x"])
def test_set_takes_key_and_value(fusionscope: Any, tmp_path: Path, pair: str) -> None:
    answer = fusionscope("import", tmp_path / "absent.json", "--set", pair)
    assert (answer.code, answer.out) == (2, "")
    assert "--set takes KEY=VALUE" in answer.err


def test_an_unreadable_file_is_a_sentence(fusionscope: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("no trace")
    answer = fusionscope("import", file, "--json")
    assert (answer.code, answer.out) == (2, "")
    assert str(file) in answer.err


ROCPROFV3 = "Kind,Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Dispatch_Id,Start_Timestamp,End_Timestamp\n"


def test_a_folder_of_amd_ranks(fusionscope: Any, tmp_path: Path) -> None:
    for rank, agent in ((0, 4), (1, 5), (3, 7)):
        file = tmp_path / "host" / f"rank{rank}_kernel_trace.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{ROCPROFV3}KERNEL_DISPATCH,Agent {agent},1,_Z4gemmi.kd,1,1,{agent},20\n")
    answer = fusionscope("import", tmp_path / "host", "--name", "amd", "--json")
    assert answer.code == 0
    assert [file["path"] for file in fusionscope("show", "amd", "--json").json["info"]["inputs"]] == [
        f"rank{rank}_kernel_trace.csv" for rank in (0, 1, 3)
    ]
    assert "Warning: Rank 2 of at least 4 is missing" in answer.err


def test_standard_input(fusionscope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        @property
        def buffer(self) -> io.BytesIO:
            return self

    monkeypatch.setattr("sys.stdin", Pipe(f"{ROCPROFV3}KERNEL_DISPATCH,4,1,k,1,1,3,20\n".encode()))
    answer = fusionscope("import", "-", "--name", "piped", "--json")
    assert answer.code == 0
    assert fusionscope("show", "piped", "--json").json["kernel_time_ns"] == 17


def test_files_and_stores_may_be_urls(fusionscope: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two ranks under a URL are one run of a store at a URL, and another command opens it."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    import platformdirs
    from s3_server import s3_bucket

    from fusionscope.profiler.remote import filesystem

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    with s3_bucket(monkeypatch, "traces") as bucket:
        system, _ = filesystem(bucket)
        for rank in (0, 1):
            text = json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [event]})
            system.pipe_file(f"traces/prof/rank{rank}.json", text.encode())
        answer = fusionscope("import", f"{bucket}/prof/", "--store", f"{bucket}/runs", "--name", "far", "--json")
        assert answer.code == 0, answer.err
        document = fusionscope("show", "far", "--store", f"{bucket}/runs", "--json").json
        assert document["ranks"] == 2
        assert [file["path"] for file in document["info"]["inputs"]] == ["rank0.json", "rank1.json"]
        nothing = fusionscope("import", f"{bucket}/none/", "--store", f"{bucket}/runs")
        assert nothing.code == 2
        assert "no file under s3://traces/none/" in nothing.err


def test_a_packed_run_is_imported_as_it_is(fusionscope: Any, tmp_path: Path) -> None:
    assert fusionscope("export", "example", "--pack", tmp_path / "a b.tar").code == 0
    answer = fusionscope("import", tmp_path / "a b.tar", "--name", "of a friend")
    assert answer.code == 0 and answer.out.endswith("Next: fusionscope attribute 'of a friend'\n")
    assert fusionscope("show", "of a friend", "--json").json["info"]["model"] == "glm-5.3-flash"
    told = fusionscope("import", tmp_path / "a b.tar", "--batch", 4)
    assert told.code == 2 and "give --name alone" in told.err


def test_a_name_that_cannot_be_is_refused_before_anything_is_read(fusionscope: Any, tmp_path: Path) -> None:
    answer = fusionscope("import", tmp_path / "missing.json", "--name", "a/b")
    assert answer.code == 2 and "cannot name a run" in answer.err
