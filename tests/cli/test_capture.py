"""`fusionscope capture` on the CPU: the tiny model on two ranks, and what happens when a capture is cut short."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fusionscope.cli.main import main
from fusionscope.profiler.store import Run, Store

LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")
COMMAND = [
    sys.executable,
    "-c",
    "from fusionscope.cli.main import run; run()",
    *("capture", "--model", "tiny", "--tp", "2", "--device", "cpu", "--json"),
]


def torch_cache() -> str:
    """Where torch keeps what it compiled, by its own choice or the user's."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Run]:
    """What the command printed on stdout (as JSON) and stderr, and the run that it stored."""
    root, temporary = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("temporary")
    out, err = io.StringIO(), io.StringIO()
    arguments = ["--tp", "2", "--batch", "2", "--context", "256", "--replays", "3", "--device", "cpu", "--name", "t"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        # What torch compiles is kept on purpose, so it does not belong to what a capture must clear away.
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", torch_cache())
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", None)
        code = main(["capture", "--model", "tiny", *arguments, "--store", str(root), "--json"])
    assert code == 0, err.getvalue()
    assert list(temporary.iterdir()) == []
    return json.loads(out.getvalue()), err.getvalue(), Store(root).load("t")


def test_a_capture_prints_where_its_run_is(captured: tuple[dict[str, Any], str, Run]) -> None:
    document, err, run = captured
    assert document == {"run": run.info.id, "path": str(run.path), "labels": ["built-in model", "cpu"]}
    assert "profiler: torch" in err
    assert sorted(path.name for path in run.path.parent.glob("logs/*")) == []


def test_a_run_tells_how_it_was_made(captured: tuple[dict[str, Any], str, Run]) -> None:
    info = captured[2].info
    assert (info.model, info.tp, info.batch, info.context, info.layers) == ("tiny", 2, 2, 256, 5)
    assert (info.device, info.profiler, info.tracing_mode, info.world_size) == ("cpu", "torch", "operators", 2)
    assert (info.warmup_replays, info.imported, info.emulated_ranks, info.warnings) == (1, False, False, [])
    assert info.machine["torch"]


def test_every_rank_is_timed_without_a_profiler_and_with_it(captured: tuple[dict[str, Any], str, Run]) -> None:
    timings = captured[2].trace.timings
    counts = timings.groupby(["rank", "source"], observed=True).size().to_dict()
    assert counts == {
        (0, "host latency"): 24,
        (1, "host latency"): 24,
        (0, "traced process"): 6,
        (1, "traced process"): 6,
    }
    untraced = timings[timings["source"] == "host latency"]
    assert untraced.groupby("rank")["block"].nunique().to_dict() == {0: 4, 1: 4}
    # Each phase has processes of its own.
    assert timings.groupby("rank")["process"].nunique().to_dict() == {0: 2, 1: 2}
    assert (timings["duration_ns"] > 0).all()


def test_every_replay_of_every_rank_has_the_same_launches(captured: tuple[dict[str, Any], str, Run]) -> None:
    trace = captured[2].trace
    forwards = trace.ranges[trace.ranges["name"] == "fusionscope.forward"]
    sequences = set()
    for row in forwards.itertuples():
        own = trace.kernels[trace.kernels["rank"] == row.rank].sort_values("start_ns", kind="stable")
        inside = own[(own["start_ns"] >= row.start_ns) & (own["start_ns"] < row.end_ns)]
        sequences.add(tuple(inside["name"].astype(str)))
    assert len(forwards) == 2 * (1 + 3)
    assert len(sequences) == 1
    assert set(trace.kernels["kind"].astype(str)) == {"op"}


def test_the_sites_of_the_model_are_found_by_ranges(captured: tuple[dict[str, Any], str, Run]) -> None:
    out = io.StringIO()
    run = captured[2]
    with contextlib.redirect_stdout(out):
        assert main(["attribute", "t", "--store", str(run.path.parent), "--json"]) == 0
    found = {row["boundary"]: row for row in json.loads(out.getvalue())["boundaries"]}
    assert (found["mhc_post"]["sites"], found["moe_finalize"]["sites"], found["ar_norm"]["sites"]) == (10, 2, 0)
    assert found["mhc_post"]["rung"] == 2
    assert found["mhc_post"]["nested"] == {"moe_finalize": 2, "mhc_post_pre": 5}
    assert (found["mhc_post_pre"]["sites"], found["mhc_post_pre"]["nested"]) == (5, {})
    assert found["mhc_post"]["kernel_time_ns"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "no-such"], "glm-5.3-flash"),
        (["--tp", "3"], "--tp 3"),
        (["--tp", "0"], "--tp"),
        (["--paths", "mhc_post=magic"], "split"),
        (["--device", "tpu"], "--device"),
        (["--profiler", "perf"], "--profiler"),
        (["--profiler", "cupti"], "--profiler torch"),
        (["--layers", "0"], "--layers"),
        (["--layers", "99"], "--layers 99 is more than the 5 of tiny"),
        (["--replays", "0"], "--replays"),
        (["--context", "7"], "--context 7"),
        (["--name", "a/b"], "--name"),
    ],
)
def test_what_cannot_be_captured_is_one_sentence(
    fusionscope: Any, tmp_path: Path, arguments: list[str], says: str
) -> None:
    usual = {"--model": "tiny", "--tp": "2", "--device": "cpu"}
    usual |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    answer = fusionscope("capture", *(part for pair in usual.items() for part in pair), "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert says in answer.err
    assert not (tmp_path / "store").exists()


def marked(home: Path) -> list[tuple[int, dict[str, str]]]:
    """Processes whose TMPDIR is this test's own: (pid, environment)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if environment.get("TMPDIR") == str(home):
            found.append((int(folder.name), environment))
    return found


def wait_for(what: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.05)
    return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A capture whose two ranks have started, and its store."""
    home = tmp_path / "tmp"
    home.mkdir()
    environment = {**os.environ, "TMPDIR": str(home), "FUSIONSCOPE_STORE": str(tmp_path / "store")}
    process = subprocess.Popen(
        COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: {e.get("RANK") for _, e in marked(home)} >= {"0", "1"}, 60)
        yield process, home
    finally:
        for pid, _ in marked(home):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@LINUX
def test_a_killed_rank_ends_the_capture(running: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    process, home = running
    os.kill(next(pid for pid, environment in marked(home) if environment.get("RANK") == "1"), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert "SIGKILL" in err
    nothing_left(home, tmp_path / "store")


@LINUX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupted_capture_leaves_nothing(
    running: tuple[subprocess.Popen[str], Path], tmp_path: Path, number: int, code: int
) -> None:
    process, home = running
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    nothing_left(home, tmp_path / "store")


@LINUX
def test_no_rank_outlives_a_killed_command(running: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    process, home = running
    process.kill()
    process.communicate()
    wait_for(lambda: not marked(home), 30)
    assert runs_in(tmp_path / "store") == []


def nothing_left(home: Path, store: Path) -> None:
    assert marked(home) == []
    # What torch compiled is kept on purpose.
    assert [path.name for path in home.iterdir() if not path.name.startswith("torchinductor_")] == []
    assert runs_in(store) == []
    assert [log.name for log in store.glob("logs/*") if not log.stat().st_size] == []


def runs_in(store: Path) -> list[str]:
    return [path.name for path in store.iterdir() if path.name != "logs"]
