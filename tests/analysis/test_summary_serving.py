from __future__ import annotations

from fusionscope.analysis.accuracy import parse
from fusionscope.analysis.batches import CONTROL, LOSES, WINS, BatchRow
from fusionscope.analysis.blocks import plain
from fusionscope.analysis.blocks_markdown import inline
from fusionscope.analysis.serving import serving
from fusionscope.analysis.summary_serving import accuracy_line, batches_line, serving_line
from fusionscope.profiler.readers.serving_json import ServingRun


def test_batches_stand_in_order_with_their_gate_and_controls() -> None:
    rows = [
        BatchRow(64, 0, 64, CONTROL, 1e7, 20_000.0),
        BatchRow(1, 0, 1, WINS, 1e7, 149_000.0),
        BatchRow(16, 0, 16, WINS, 1e7, 138_000.0),
    ]
    line = batches_line(rows)
    assert line is not None and plain(line) == (
        "Batches: 1: -149 us | 16: -138 us | 64: fusion off, same kernels (controls, +-0.2 %). "
        "Fuse up to 16 tokens; fusion off from 64; 17-63 not measured."
    )
    assert batches_line(rows[:1]) is None
    lost = batches_line([BatchRow(1, 0, 1, LOSES, 1e7, -3_000.0), BatchRow(4, 0, 4, "undecided")])
    assert lost is not None and plain(lost).startswith("Batches: 1: 3.00 us | 4: undecided. Fuse at none")


def test_serving_and_accuracy_in_one_line_each() -> None:
    def run(tpot: float) -> list[ServingRun]:
        return [ServingRun("f", 4, tpot, None, None, None)]

    told = plain(serving_line(serving(run(10.0), run(9.8))))
    assert told.startswith("Serving: Concurrency 4: time per token observed -2.0 %, not predicted. No noise known")
    line = accuracy_line([parse("gsm8k=0.967/1319,0.969/1319")])
    assert line is not None and plain(line) == (
        "Accuracy: gsm8k 0.967 -> 0.969 of 1319: no change seen; would miss a drop below 1.4 points. "
        "Acceptance length: not measured."
    )
    assert accuracy_line([]) is None


def test_a_users_name_is_data() -> None:
    line = accuracy_line([parse("@team/<b>=0.9/10,0.9/10")])
    assert line is not None and "`@team/<b>` 0.900" in inline(line)
