"""`boundary`: off, under capture, as a range, and what it leaves for the import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_capture_library import build

from fusionscope.fusion_runtime import boundary, graph_nodes, marks
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.graph_nodes import CUDA, HIP, Api, CaptureCounter
from fusionscope.profiler.readers import read_provenance


def test_off_it_is_one_shared_nothing_and_imports_nothing_heavy() -> None:
    assert boundary("ar_norm", site=1) is boundary("mhc_post")
    code = (
        "import sys; from fusionscope.fusion_runtime import boundary\n"
        "with boundary('ar_norm', site=17): pass\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'triton', 'cuda', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int] | None]]:
    """What the graph under capture answers, in turn."""
    answers: list[tuple[int, int] | None] = []
    monkeypatch.setattr(marks, "captured_nodes", lambda: answers.pop(0))
    yield answers
    assert answers == []


def test_under_capture_the_nodes_are_recorded_and_read_back(
    counts: list[tuple[int, int] | None], tmp_path: Path
) -> None:
    counts += [(9, 4), (9, 5), (9, 7), (9, 7), (9, 8), (9, 10)]
    with marks.record() as found:
        with (
            boundary("moe_finalize", layer=3),
            boundary("mhc_post", site=5, layer=3, subtype="ffn_exit", path="triton"),
        ):
            pass
        with boundary("moe_finalize", layer=4):
            pass
    assert boundary("moe_finalize") is boundary("x")
    found.write(tmp_path / "a.nodes.json")
    rows = read_provenance(tmp_path / "a.nodes.json")
    rows = rows[["rank", "graph", "boundary", "subtype", "site", "layer", "node", "path"]]
    assert [tuple(row) for row in rows.to_numpy().tolist()] == [
        (0, -2, "mhc_post", "ffn_exit", 5, 3, 5, "triton"),
        (0, -2, "mhc_post", "ffn_exit", 5, 3, 6, "triton"),
        (0, -2, "moe_finalize", "", 0, 3, 4, ""),
        (0, -2, "moe_finalize", "", 0, 3, 5, ""),
        (0, -2, "moe_finalize", "", 0, 3, 6, ""),
        (0, -2, "moe_finalize", "", 1, 4, 8, ""),
        (0, -2, "moe_finalize", "", 1, 4, 9, ""),
    ]


def test_every_capture_counts_its_own_sites(counts: list[tuple[int, int] | None]) -> None:
    counts += [(9, 0), (9, 1), (12, 0), (12, 2), (12, 2), (12, 2), (12, 5), None]
    with marks.record() as found:
        for _ in range(4):
            with boundary("ar_norm"):
                pass
    # The third added no node, and the capture of the fourth ended inside it.
    assert [(m.capture, m.site, m.first, m.last) for m in found.rows] == [(0, 0, 0, 1), (1, 0, 0, 2)]


def test_a_block_that_raises_is_no_site(counts: list[tuple[int, int] | None]) -> None:
    counts += [(9, 0)]
    with marks.record() as found, pytest.raises(ValueError), boundary("ar_norm"):
        raise ValueError
    assert found.rows == []


def test_a_killed_process_has_lost_nothing(tmp_path: Path) -> None:
    """And a forked child writes a file of its own."""
    code = """
import os, signal
from fusionscope.fusion_runtime import boundary, marks
answers = [(9, 0), (9, 2), (9, 2), (9, 3)] * 2
marks.captured_nodes = lambda: answers.pop(0)
for _ in range(2):
    with boundary("ar_norm", layer=1):
        pass
if os.fork() == 0:
    for _ in range(2):
        with boundary("ar_norm", layer=2):
            pass
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, "FUSIONSCOPE_MARKS": str(tmp_path / "sub" / "marks-{rank}-{pid}.jsonl"), "RANK": "3"}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == -9
    files = sorted((tmp_path / "sub").glob("marks-3-*.jsonl"))
    assert len(files) == 2
    for file in files:
        rows = read_provenance(file)
        assert rows["rank"].unique().tolist() == [3] and len(rows) == 3
        assert json.loads(file.read_text().splitlines()[0])["fusionscope_marks"] == 1
        # The last line of a killed process may be half.
        file.write_text(file.read_text()[:-9])
        assert len(read_provenance(file)) == 2


def test_a_folder_that_cannot_be_written_does_not_stop_the_model(
    counts: list[tuple[int, int] | None], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    counts += [(9, 0), (9, 1), (9, 1), (9, 2)]
    with marks.record(str(tmp_path / "file" / "x")) as found:
        with pytest.warns(UserWarning, match="cannot be written"), boundary("ar_norm"):
            pass
        with boundary("ar_norm"):
            pass
    assert len(found.rows) == 2


def test_outside_a_capture_a_range_is_opened() -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    mark = marks.record()
    with (
        profile(activities=[ProfilerActivity.CPU]) as prof,
        mark as found,
        boundary("ar_norm", 2, layer=7, subtype="r"),
    ):
        torch.ones(2).add_(1)
    assert found.rows == []
    assert [e.name for e in prof.events() if "|" in e.name] == ["fusionscope.site|ar_norm|r|7|"]


def test_compiled_code_is_not_marked() -> None:
    torch = pytest.importorskip("torch")

    def step(x: object) -> object:
        with boundary("ar_norm"):
            return x + 1  # type: ignore[operator]

    with marks.record():
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert torch.compile(step, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("api", [CUDA, HIP], ids=["cuda", "hip"])
def test_nodes_are_counted_through_the_vendors_library(api: Api, tmp_path: Path) -> None:
    library = build(tmp_path, api.capture_info, api.get_nodes)
    counter = CaptureCounter(api, library)
    library.set_state(1, 2**40, 12, 0)
    assert counter.count(7) == (2**40, 12)
    library.set_state(0, 1, 12, 0)
    assert counter.count(7) is None
    library.set_state(2, 1, 12, 0)  # the capture has been broken off
    assert counter.count(7) is None
    library.set_state(1, 1, 12, 3)
    assert counter.count(0) is None
    with pytest.raises(RuntimeContractError, match=f"{api.get_nodes} failed with 3"):
        counter.count(7)


def test_a_library_without_the_calls_is_named(tmp_path: Path) -> None:
    library = build(tmp_path, "other", "names")
    with pytest.raises(RuntimeContractError, match=r"libamdhip64\.so has no hipStreamGetCaptureInfo_v2"):
        CaptureCounter(HIP, library)
    with pytest.raises(RuntimeContractError, match="cannot be loaded"):
        CaptureCounter(Api(("libnowhere.so",), "a", "b"))


def test_on_a_hip_build_hips_library_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    library = build(tmp_path, HIP.capture_info, HIP.get_nodes)
    monkeypatch.setattr(graph_nodes, "load", lambda names: library if names == HIP.libraries else None)
    graph_nodes._counter.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 7}))
    library.set_state(1, 5, 21, 0)
    assert graph_nodes.captured_nodes() == (5, 21)
    library.set_state(1, 5, 21, 1)
    assert graph_nodes.captured_nodes() is None
    with pytest.raises(RuntimeContractError):
        graph_nodes.captured_nodes(strict=True)
    graph_nodes._counter.cache_clear()
