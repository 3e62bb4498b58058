"""Engines and other commands under a profiler: exact command lines, and whole captures with stand-ins for all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_programs import install

from fusionscope.analysis.analysed import analyse
from fusionscope.profiler.capture import engines, serving, wrappers
from fusionscope.profiler.capture.engine_session import Asked, run_engine
from fusionscope.profiler.capture.engines import Job, recipe
from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.capture.wrappers import Wrapper
from fusionscope.profiler.store import Run, Store

OUT = Path("/out")
JOB: dict[str, Any] = {
    "model_path": "M", "tp": 8, "batch": 32, "context": 1024, "steps": 12, "out": OUT, "port": 30000,
}  # fmt: skip


def job(profiler: str = "nsys", **changes: Any) -> Job:
    return Job(**{**JOB, "profiler": profiler, **changes})


def test_sglang_under_nsys_as_typed_by_hand() -> None:
    made = recipe("sglang", job(more=("--trust-remote-code",)), serve=False)
    nsys = Wrapper("nsys", Path("/bin/nsys")).command(made.command, OUT, made.recorded, repeat=made.repeat)
    assert " ".join(nsys) == (
        "/bin/nsys profile --trace=cuda,nvtx --cuda-graph-trace=node --sample=none --cpuctxsw=none "
        "--trace-fork-before-exec=true --capture-range=cudaProfilerApi --capture-range-end=stop --export=sqlite "
        f"--force-overwrite=true --output=/out/trace {sys.executable} -m sglang.bench_one_batch --model-path M --tp 8 "
        "--batch-size 32 --input-len 1024 --output-len 32 --result-filename /out/result.jsonl --profile "
        "--profile-activities CUDA_PROFILER "
        "--profile-stage decode --profile-steps 12 --trust-remote-code"
    )


def test_sglang_with_torch_and_on_rocm() -> None:
    torch = recipe("sglang", job("torch"), serve=False)
    assert torch.command[-7:] == [
        "--profile-activities",
        "CPU",
        "GPU",
        "--profile-stage",
        "decode",
        "--profile-steps",
        "12",
    ]
    assert Wrapper("torch", None).environment(OUT)["SGLANG_TORCH_PROFILER_DIR"] == "/out"
    rocm = recipe("sglang", job("rocprofv3"), serve=False)
    line = Wrapper("rocprofv3", Path("/bin/rocprofv3")).command(rocm.command, OUT, rocm.recorded)
    assert " ".join(line) == (
        "/bin/rocprofv3 --kernel-trace --hip-trace --marker-trace --output-format json -d /out -o %hostname%_%pid% -- "
        f"{sys.executable} -m sglang.bench_one_batch --model-path M --tp 8 --batch-size 32 --input-len 1024 "
        "--output-len 32 --result-filename /out/result.jsonl"
    )
    api = Wrapper("rocprofv3", Path("r")).command(["x"], OUT, "api")
    assert "--selected-regions" in api


def test_sglang_server() -> None:
    made = recipe("sglang", job("torch"), serve=True)
    assert " ".join(made.command[1:]) == (
        "-m sglang.launch_server --model-path M --tp 8 --host 127.0.0.1 --port 30000 --max-running-requests 32"
    )
    assert made.server is not None and made.server.ready == "/health" and made.server.stop is None
    assert made.server.start.path == "/start_profile"
    assert made.server.start.body == {
        "output_dir": "/out", "num_steps": 12, "activities": ["CPU", "GPU"], "merge_profiles": False,
        "with_stack": False,
    }  # fmt: skip
    assert len(made.server.load.body["input_ids"]) == 32 and len(made.server.load.body["input_ids"][0]) == 1024
    under_nsys = recipe("sglang", job(), serve=True)
    assert under_nsys.server is not None and under_nsys.server.start.body["activities"] == ["CUDA_PROFILER"]


def test_vllm() -> None:
    made = recipe("vllm", job("torch"), serve=False)
    config = json.loads(made.command[-1])
    assert made.command[:-1] == [
        "vllm", "serve", "M", "--tensor-parallel-size", "8", "--host", "127.0.0.1", "--port", "30000",
        "--max-num-seqs", "32", "--profiler-config",
    ]  # fmt: skip
    assert config == {
        "profiler": "torch", "torch_profiler_dir": "/out", "torch_profiler_with_stack": False,
        "delay_iterations": 16, "max_iterations": 12, "ignore_frontend": True,
    }  # fmt: skip
    under_nsys = recipe("vllm", job(), serve=True)
    assert json.loads(under_nsys.command[-1])["profiler"] == "cuda"
    line = Wrapper("nsys", Path("nsys")).command(under_nsys.command, OUT, "api", repeat=under_nsys.repeat)
    assert "--capture-range-end=repeat" in line
    assert Wrapper("nsys", Path("nsys")).environment(OUT)["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert made.server is not None and made.server.load.times == 32 and made.server.stop is not None


def test_trtllm() -> None:
    made = recipe("trtllm", job("torch"), serve=False)
    assert " ".join(made.command) == (
        "trtllm-bench --model M --model_path M throughput --backend pytorch --tp 8 --dataset /out/dataset.jsonl "
        "--num_requests 32 --concurrency 32 --max_batch_size 32 --warmup 0"
    )
    assert made.env["TLLM_PROFILE_START_STOP"] == "100-112"
    assert made.env["TLLM_TORCH_PROFILE_TRACE"] == "/out/trtllm.trace.json"
    rows = [json.loads(line) for line in made.files["dataset.jsonl"].splitlines()]
    assert len(rows) == 32 and {len(r["input_ids"]) for r in rows} == {1024} and rows[0]["output_tokens"] > 112
    with pytest.raises(CaptureError, match="no server recipe"):
        recipe("trtllm", job(), serve=True)
    with pytest.raises(CaptureError, match="sglang, vllm, trtllm"):
        recipe("llama", job(), serve=False)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the stand-ins note what they were told."""
    state = tmp_path / "state"
    for key, value in install(tmp_path / "bin", state).items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(serving, "POLL_S", 0.02)
    return state


def noted(state: Path, name: str) -> list[Any]:
    return [json.loads(line) for line in (state / name).read_text().splitlines()]


def captured(tmp_path: Path, **asked: Any) -> Run:
    store = Store(tmp_path / "store")
    return run_engine(Asked(settle_s=0.1, **asked), store, "r", command=["fusionscope", "capture"])


def holds(run: Run, ranks: int, tmp_path: Path) -> None:
    """The run has every rank's replays with two sites each, and no folder is left over."""
    assert sorted(run.trace.kernels["rank"].unique().tolist()) == list(range(ranks))
    for rank in range(ranks):
        found = analyse(run, rank=rank)
        assert (found.forward.launches, found.forward.replays) == (6, 3)
        assert len(found.attribution.sites["ar_norm"]) == 2
    assert list((tmp_path / "store" / "captures").iterdir()) == []
    assert not run.info.imported and run.info.command == ["fusionscope", "capture"]


@pytest.mark.parametrize("profiler", ["nsys", "rocprofv3", "torch"])
def test_sglang_is_captured(fake: Path, tmp_path: Path, profiler: str) -> None:
    tp = 1 if profiler == "torch" else 2
    run = captured(tmp_path, engine="sglang", model_path="/models/M", tp=tp, batch=32, profiler=profiler)
    holds(run, tp, tmp_path)
    info = run.info
    assert (info.model, info.tp, info.batch, info.profiler) == ("M", tp, 32, profiler)
    assert info.settings == {"engine": "sglang"}
    if profiler == "nsys":
        assert info.machine["nsys"].startswith("2026.2.1")
    if profiler == "rocprofv3":
        assert any("numbered by device" in w for w in info.warnings)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("profiler", ["nsys", "torch"])
def test_servers_are_led_through_a_profile(fake: Path, tmp_path: Path, engine: str, profiler: str) -> None:
    run = captured(tmp_path, engine=engine, model_path="M", tp=2, batch=3, profiler=profiler, serve=True)
    holds(run, 2, tmp_path)
    paths = [path for path, _ in noted(fake, "requests")]
    load = {"sglang": ["/generate", "first token"], "vllm": ["/v1/completions"] * 3}[engine]
    if engine == "sglang":
        assert paths == [*load, *load, "/start_profile"]
    else:
        assert paths == [*load, "/start_profile", *load, "/stop_profile"]


@pytest.mark.parametrize("profiler", ["nsys", "torch", "rocprofv3"])
def test_trtllm_is_captured(fake: Path, tmp_path: Path, profiler: str) -> None:
    tp = 2
    holds(captured(tmp_path, engine="trtllm", model_path="M", tp=tp, batch=4, profiler=profiler), tp, tmp_path)


def test_any_command_is_captured_with_its_marks(fake: Path, tmp_path: Path) -> None:
    code = """
import json, os
from pathlib import Path
from fusionscope.fusion_runtime import boundary, marks
state = Path(os.environ["FAKE_STATE"])
(state / "ranks").write_text(json.dumps([os.getpid() + 1, os.getpid()]))
(state / "calls").write_text("x")
answers = [(9, 1), (9, 3), (9, 4), (9, 6)]
marks.captured_nodes = lambda: answers.pop(0)
for layer in range(2):
    with boundary("mine", layer=layer):
        pass
"""
    run = captured(tmp_path, command=(sys.executable, "-c", code), profiler="nsys")
    holds(run, 2, tmp_path)
    # The process is the second rank, as its GPU is the second.
    found = analyse(run, rank=1).attribution
    assert [(s.columns, s.layer) for s in found.sites["mine"]] == [((1, 2), 0), ((4, 5), 1)]
    assert found.rungs["mine"] == 1
    assert "mine" not in analyse(run, rank=0).attribution.sites
    assert len(run.info.inputs) == 2


def test_without_a_profiler_call_nothing_is_recorded_and_the_way_is_said(fake: Path, tmp_path: Path) -> None:
    idle = (sys.executable, "-c", "pass")
    with pytest.raises(CaptureError, match=r"never called cudaProfilerStart.*--range all"):
        captured(tmp_path, command=idle, profiler="nsys")
    assert len(list((tmp_path / "store" / "captures").iterdir())) == 1
    store = Store(tmp_path / "other")
    assert len(run_engine(Asked(idle, profiler="nsys", recorded="all"), store).trace.kernels) == 18
    with pytest.raises(CaptureError, match="roctxProfilerResume"):
        captured(tmp_path, command=idle, profiler="rocprofv3", recorded="api")
    with pytest.raises(CaptureError, match=r"SGLANG_TORCH_PROFILER_DIR"):
        captured(tmp_path, command=idle, profiler="torch")


def test_a_command_that_fails_is_told_with_its_last_line(fake: Path, tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "print('out of memory'); raise SystemExit(3)")
    with pytest.raises(CaptureError, match=r"ended with code 3; its last line was: out of memory\. .*output\.log"):
        captured(tmp_path, command=failing, profiler="nsys")
    # What the profiler could record all the same is kept, and the failure is in the run's warnings.
    run = captured(tmp_path, command=failing, profiler="nsys", recorded="all")
    assert "ended with code 3" in run.info.warnings[-1]
    with pytest.raises(CaptureError, match=r"/no/such cannot be started"):
        captured(tmp_path, command=("/no/such",), profiler="torch")
    # The one that recorded nothing stays for its output; what was never started leaves nothing.
    assert len(list((tmp_path / "store" / "captures").iterdir())) == 1


def test_a_server_that_refuses_or_dies_is_told(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with pytest.raises(CaptureError, match=r"refused POST /start_profile with 500.*output\.log"):
        captured(tmp_path, engine="sglang", model_path="M", tp=1, batch=1, profiler="torch", serve=True)
    monkeypatch.setitem(engines.ENGINES, "vllm", (None, lambda job: engines.Recipe([sys.executable, "-c", "0"], "api",
                        server=engines.vllm_server(job).server)))  # fmt: skip
    with pytest.raises(CaptureError, match="server ended before it could become ready"):
        captured(tmp_path, engine="vllm", model_path="M", tp=1, batch=1, profiler="torch")


def test_wrong_use(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match="no command"):
        captured(tmp_path, profiler="nsys")
    with pytest.raises(CaptureError, match="--model-path"):
        captured(tmp_path, engine="sglang", profiler="nsys")
    with pytest.raises(CaptureError, match="--range"):
        captured(tmp_path, command=("x",), profiler="nsys", recorded="some")
    with pytest.raises(CaptureError, match="auto, nsys, rocprofv3, torch"):
        captured(tmp_path, command=("x",), profiler="cupti")
    assert list((tmp_path / "store" / "captures").iterdir()) == []
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("NSYS", "/no/nsys")
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: None)
    with pytest.raises(CaptureError, match="rocprofiler-sdk"):
        captured(tmp_path, command=("x",), profiler="rocprofv3")
    with pytest.raises(CaptureError, match="fusionscope doctor"):
        captured(tmp_path, command=("x",))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")
@pytest.mark.parametrize("recorded", ["all", "api"])
def test_an_interrupt_ends_the_children_and_keeps_what_was_written(fake: Path, tmp_path: Path, recorded: str) -> None:
    line = [sys.executable, "-c", "from fusionscope.cli.main import run; run()", "capture", "--profiler", "nsys"]
    line += ["--range", recorded, "--store", str(tmp_path / "store"), "--name", "r", "--", "sleep", "600"]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (fake / "pids").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    [pids] = noted(fake, "pids")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (130, "")
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    if recorded == "all":
        run = Store(tmp_path / "store").load("r")
        assert f"stored as {run.info.id}" in err and "interrupted" in run.info.warnings[-1]
        holds_kernels = len(run.trace.kernels)
        assert holds_kernels == 18
    else:
        [folder] = (tmp_path / "store" / "captures").iterdir()
        assert f"What was written is in {folder.resolve()}" in err


def test_children_end_with_a_capture_that_is_killed(fake: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("looks at /proc")
    line = [sys.executable, "-c", "from fusionscope.cli.main import run; run()", "capture", "--profiler", "torch"]
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    line += ["--store", str(tmp_path / "store"), "--", sys.executable, "-c", code]
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.kill()
    child.wait()
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert os.path.isdir(tmp_path / "store" / "captures")


def test_a_second_pass_of_whole_graphs_gives_the_cost_of_tracing(fake: Path, tmp_path: Path) -> None:
    from fusionscope.analysis.tracing import tracing

    run = captured(tmp_path, engine="sglang", model_path="M", tp=2, batch=4, profiler="nsys", graph_pass=True)
    holds(run, 2, tmp_path)
    modes = [word for line in noted(fake, "arguments") for word in line if "cuda-graph-trace" in word]
    assert modes == ["--cuda-graph-trace=node", "--cuda-graph-trace=graph"]
    for rank in range(2):
        found = tracing(run, rank)
        assert found is not None and (found.graph_level_ns, found.node_level_ns) == (30_400, 30_500)
    assert run.info.tracing_mode == "node" and "graph mode" not in run.info.labels
    # A command that works once alone still gives a run.
    calls = fake / "calls"
    calls.unlink()
    code = f"from pathlib import Path; p = Path({str(calls)!r}); p.unlink() if p.exists() else p.write_text('x')"
    again = captured(tmp_path, command=(sys.executable, "-c", code), profiler="nsys", recorded="api", graph_pass=True)
    assert len(again.trace.kernels) == 36 and not len(again.trace.timings)
    assert "cost of tracing is not known" in again.info.warnings[-1]
