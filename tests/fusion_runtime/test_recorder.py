from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile

from fusionscope.fusion_runtime.decode import recorder as module
from fusionscope.fusion_runtime.decode.one_launch import one_launch
from fusionscope.fusion_runtime.decode.recorder import SiteRecorder, SiteRow


def test_nested_sites_keep_their_order_and_open_ranges() -> None:
    recorder = SiteRecorder()
    with profile(activities=[ProfilerActivity.CPU]) as prof, recorder.site("moe_finalize", "ffn_exit", 3, "split"):
        torch.ones(2).add_(1)
        with recorder.site("mhc_post", "ffn_exit", 3, "split", "inductor: no C++ compiler found"):
            torch.ones(2).mul_(2)
    assert recorder.rows == [
        SiteRow("moe_finalize", "ffn_exit", 3, "split"),
        SiteRow("mhc_post", "ffn_exit", 3, "split", "inductor: no C++ compiler found"),
    ]
    ranges = {e.name: e.time_range for e in prof.events() if e.name.startswith("fusionscope.site|")}
    outer = ranges["fusionscope.site|moe_finalize|ffn_exit|3|split"]
    inner = ranges["fusionscope.site|mhc_post|ffn_exit|3|split"]
    assert outer.start <= inner.start and inner.end <= outer.end


def test_start_forgets_the_forward_before() -> None:
    recorder = SiteRecorder()
    with recorder.site("mhc_post", "attn_exit", 0, "split"):
        pass
    before = recorder.rows
    recorder.start()
    assert recorder.rows == [] and len(before) == 1


def test_under_capture_the_node_counts_bracket_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5, 7, 7])
    monkeypatch.setattr(module, "captured_nodes", lambda: next(counts))
    recorder = SiteRecorder()
    with recorder.site("moe_finalize", "ffn_exit", 3, "split"), recorder.site("mhc_post", "ffn_exit", 3, "split"):
        pass
    assert [(row.first_node, row.last_node) for row in recorder.rows] == [(4, 7), (5, 7)]


def test_one_launch_hides_its_inside_and_only_that() -> None:
    @one_launch
    def inner(x: object) -> object:
        return x * 3  # type: ignore[operator]

    @one_launch
    def outer(x: object) -> object:
        return inner(x) + 1  # type: ignore[operator]

    @one_launch
    def failing() -> None:
        raise ValueError

    x = torch.ones(2)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        y = outer(x)
        with pytest.raises(ValueError):
            failing()
        torch.neg(x)
    assert y.tolist() == [4, 4]
    assert [e.name for e in prof.events()] == ["fusionscope::outer", "fusionscope::failing", "aten::neg"]
