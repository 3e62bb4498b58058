from __future__ import annotations

from fusionscope.analysis.accuracy import parse
from fusionscope.analysis.blocks import plain
from fusionscope.analysis.blocks_markdown import inline
from fusionscope.analysis.serving import serving
from fusionscope.analysis.summary_serving import accuracy_line, serving_line
from fusionscope.profiler.readers.serving_json import ServingRun


def test_serving_and_accuracy_in_one_line_each() -> None:
    def run(tpot: float) -> list[ServingRun]:
        return [ServingRun("f", 4, tpot, None, None, None)]

    told = plain(serving_line(serving(run(10.0), run(9.8))))
    assert told.startswith("Serving: Concurrency 4: time per token observed -2.0 %, not predicted. No noise known")
    line = accuracy_line([parse("gsm8k=0.967/1319,0.969/1319")])
    assert plain(line) == (
        "Accuracy: gsm8k 0.967 -> 0.969 of 1319: no change seen; would miss a drop below 1.4 points. "
        "Acceptance length: not measured."
    )


def test_a_users_name_is_data() -> None:
    line = accuracy_line([parse("@team/<b>=0.9/10,0.9/10")])
    assert "`@team/<b>` 0.900" in inline(line)
