from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import fake_traces
import pandas as pd
import pytest
from literal_traces import SPLIT, kernels

from fusionscope.analysis.analysed import analyse
from fusionscope.profiler.runinfo import Decline, InputFile, RunInfo
from fusionscope.profiler.scrub import GONE, KEPT, scrubbed
from fusionscope.profiler.store import Run, Store
from fusionscope.profiler.trace import Trace, table

SECRETS = ("alicez", "gpu-host-17", "/home/", "/mnt/secret", "10.1.2.3", "hunter2", "corp.example", "98765")


def private() -> tuple[RunInfo, Trace]:
    rows = kernels([SPLIT] * 3).assign(process=98765)
    ranges = pd.DataFrame(
        {
            "name": ["decode step", "/home/alicez/model.py(12): forward", "fusionscope.site|x||1|", "by alicez"],
            "rank": 0, "process": 98765, "thread": [98766, 98767, 98766, 98766], "start_ns": [1, 2, 3, 4], "end_ns": 9,
        }
    )  # fmt: skip
    launches = pd.DataFrame({"rank": [0], "process": [98765], "thread": [98767], "name": ["cudaGraphLaunch"]})
    info = RunInfo(
        name="alicez-run",
        model="/mnt/secret/GLM",
        tp=4,
        command=["fusionscope", "import", "/home/alicez/a.sqlite"],
        machine={"gpu": "NVIDIA H200", "hostname": "gpu-host-17", "system": "Linux gpu-host-17", "torch": "2.11"},
        environment={"NCCL_HOST": "10.1.2.3", "VLLM_X": "hunter2"},
        settings={"branch": "main", "data": "/mnt/secret/x y", "layers": "36", "url": "https://corp.example/a?b=c"},
        declines=[Decline(boundary="ar_norm", declined="triton: /home/alicez/lib.so is missing")],
        warnings=["gpu-host-17 was slow", "rank 1 is missing"],
        inputs=[InputFile(path="gpu-host-17_98765.db", sha256="0", bytes=1)],
        labels=["incomplete"],
    )
    trace = Trace(
        kernels=rows,
        ranges=table("ranges", ranges),
        launches=table("launches", launches),
        machine={"gpu": "NVIDIA H200", "hostname": "gpu-host-17"},
        warnings=("file /mnt/secret/y.db is old",),
    )
    return info, trace


def everything(made: Any) -> str:
    """Every text and number of a scrubbed run, as it would be stored."""
    parts = [str(made.info), str(made.trace.machine), str(made.trace.warnings)]
    for name in ("kernels", "ranges", "launches", "sites", "timings"):
        parts.append(getattr(made.trace, name).astype(str).to_csv())
    return "\n".join(parts)


def test_nothing_private_is_left_and_all_numbers_are() -> None:
    info, trace = private()
    made = scrubbed(info, trace)
    text = everything(made)
    assert [secret for secret in SECRETS if secret in text] == []
    assert made.info.machine == {"gpu": "NVIDIA H200", "torch": "2.11"} and made.info.labels == ["incomplete"]
    assert made.info.settings == {"branch": "main", "data": f"{GONE} y", "layers": "36", "url": GONE}
    assert made.info.warnings == [f"{GONE} was slow", "rank 1 is missing"]
    assert made.trace.ranges["name"].tolist() == [
        "decode step", f"{GONE}(12): forward", "fusionscope.site|x||1|", f"by {GONE}",
    ]  # fmt: skip
    assert made.trace.ranges["thread"].tolist() == [1, 2, 1, 1] and made.trace.launches["thread"].tolist() == [2]
    assert set(made.trace.kernels["process"]) == {1}
    same = ["name", "start_ns", "duration_ns", "node", "replay", "graph"]
    pd.testing.assert_frame_equal(made.trace.kernels[same], trace.kernels[same])
    assert "2 environment variables" in made.removed and "the command line" in made.removed
    # Doing it again changes nothing.
    again = scrubbed(made.info, made.trace)
    assert everything(again) == text


def test_kernel_names_stay_as_they_are() -> None:
    names = [
        "void f<a/b>(int)",
        "_ZN5aiter24add_rmsnorm",
        "at::native::op(int)::{lambda()#1}::operator()() const",
        "a / b",
    ]
    trace = Trace(kernels=kernels([[(name, k * 10, 5) for k, name in enumerate(names)]]))
    assert scrubbed(RunInfo(), trace).trace.kernels["name"].tolist() == names


def test_processes_and_devices_stay_apart() -> None:
    trace = Trace(kernels=table("kernels", {"process": [700, 500, 700], "rank": [1, 0, 1], "kind": ["kernel"] * 3}))
    assert scrubbed(RunInfo(), trace).trace.kernels["process"].tolist() == [2, 1, 2]


def test_what_stays_of_a_machine_is_a_list() -> None:
    machine = {key: "x" for key in KEPT} | {"anything new": "y", "cpu": "EPYC"}
    assert set(scrubbed(RunInfo(machine=machine), Trace()).info.machine) == set(KEPT)


def test_the_command_writes_a_packed_run_of_a_file_and_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusionscope.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "alicez").mkdir()
    file = tmp_path / "alicez" / "decode_rank0.sqlite"
    fake_traces.nsys(file, [98765])
    assert main(["scrub", str(file), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["written"] == "decode_rank0.scrubbed.zip"
    packed = tmp_path / "decode_rank0.scrubbed.zip"
    with zipfile.ZipFile(packed) as archive:
        held = b"".join(archive.read(name) for name in archive.namelist())
    assert b"alicez" not in held and b"98765" not in held and str(tmp_path).encode() not in held
    opened = Store(tmp_path).load(str(packed))
    assert set(opened.trace.kernels["process"]) == {1} and opened.info.inputs == []
    found = analyse(opened)
    assert len(found.attribution.sites["ar_norm"]) == 2

    info, trace = private()
    store = Store(tmp_path / "store")
    store.save(info, trace)
    assert main(["scrub", "alicez-run", "--store", str(store.root), "--out", str(tmp_path / "x.tar")]) == 0
    said = capsys.readouterr().out
    assert "Removed: the command line; 2 environment variables" in said and "Look at what stays" in said
    run = Store(tmp_path).load(str(tmp_path / "x.tar"))
    assert isinstance(run, Run) and run.info.tp == 4
    assert main(["scrub", "nothing", "--store", str(store.root)]) == 2
