from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats

from fusionscope.analysis.accuracy import of_answers, of_totals, parse
from fusionscope.profiler.errors import FusionScopeError


def test_the_totals_of_the_rocm_pull_request() -> None:
    found = parse("gsm8k=0.967/1319,0.969/1319")
    assert found.sentence() == "gsm8k 0.967 -> 0.969 of 1319: no change seen; would miss a drop below 1.4 points."
    assert not found.changed and found.discordant is None


def test_a_drop_of_totals_is_seen_beyond_the_least() -> None:
    least = of_totals("g", 0.967, 0.967, (1319, 1319)).least_drop
    assert least == pytest.approx(1.959964 * (2 * 0.967 * 0.033 / 1319) ** 0.5)
    assert not of_totals("g", 0.967, 0.967 - 0.99 * least, (1319, 1319)).changed
    # aiter #2586 lost 2.6 points of GSM8K by rounding in another place.
    seen = of_totals("gsm8k", 0.967, 0.941, (1319, 1319))
    assert seen.dropped and "dropped by 2.6 points" in seen.sentence()
    assert of_totals("g", 0.90, 0.95, (1319, 1000)).sentence().startswith("g 0.900 -> 0.950 of 1319 and 1000: rose by")


def test_counts_are_taken_for_counts() -> None:
    assert parse("m=12/20,15/20").base == pytest.approx(0.6)
    assert parse("m=1.0/20,1/20").candidate == pytest.approx(0.05)


def test_pairs_see_what_totals_cannot() -> None:
    base = {str(k): k < 900 for k in range(1000)}
    # Sixteen lost and two won: the totals differ by 1.4 points, unpaired nothing is seen.
    changed = {
        q: (False if 100 <= int(q) < 116 else True if int(q) in (950, 951) else right) for q, right in base.items()
    }
    paired = of_answers("g", base, changed)
    assert paired.discordant == (16, 2)
    assert paired.p_value == pytest.approx(stats.binomtest(2, 18, 0.5).pvalue) and paired.dropped
    assert "paired (16 lost, 2 won): dropped by 1.4 points" in paired.sentence()
    assert not of_totals("g", 0.900, 0.886, (1000, 1000)).changed
    same = of_answers("g", base, base)
    five = of_answers("g", base, base | {str(k): False for k in range(5)})
    assert not five.changed and of_answers("g", base, base | {str(k): False for k in range(6)}).dropped
    assert same.p_value == 1 and "no change seen; would miss a drop below 0.6 points" in same.sentence()


def test_files_of_answers_are_paired_by_question(tmp_path: Path) -> None:
    def write(name: str, right: list[float], start: int = 0) -> Path:
        path = tmp_path / name
        rows = [
            {"doc_id": start + k, "filter": f, "exact_match": r}
            for k, r in enumerate(right)
            for f in ("strict-match", "flexible-extract")
        ]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return path

    before, after = write("a.jsonl", [1.0, 0.0, 1.0, 1.0]), write("b.jsonl", [1.0, 1.0, 0.0, 1.0])
    found = parse(f"gsm8k={before},{after}")
    assert (found.base, found.candidate, found.discordant, found.questions) == (0.75, 0.75, (1, 1), (4, 4))
    other = write("c.jsonl", [1.0] * 4, start=1)
    with pytest.raises(FusionScopeError, match=r"differ in 2 questions \(the first is 0\)"):
        parse(f"gsm8k={before},{other}")
    whole = tmp_path / "d.json"
    whole.write_text(json.dumps([{"id": "q", "correct": True}]), encoding="utf-8")
    assert parse(f"x={whole},{whole}").candidate == 1
    whole.write_text(json.dumps([{"question": "How many?", "correct": k} for k in (True,)]), encoding="utf-8")
    assert parse(f"x={whole},{whole}").questions == (1, 1)
    for bad, told in (
        ("{}", "needs a question"),
        (json.dumps([{"question": "why " * 99, "acc": 1}] * 2), r"question (why ){14}why\s* twice"),
        ("oops", "no JSON"),
        ('[{"id": 1, "score": 0.5}]', "needs a question"),
        ("[]", "holds no answers"),
        ('[{"id": 1, "acc": 1}, {"id": 1, "acc": 0}]', "twice"),
    ):
        whole.write_text(bad, encoding="utf-8")
        with pytest.raises(FusionScopeError, match=told):
            parse(f"x={whole},{whole}")


@pytest.mark.parametrize(
    "text,told",
    [
        ("gsm8k", "takes NAME=BEFORE,AFTER"),
        ("gsm8k=0.9/10", "takes NAME=BEFORE,AFTER"),
        ("gsm8k=0.9/10,file.jsonl", "a total on both sides"),
        ("gsm8k=0.9/0,0.9/10", "is no score"),
        ("gsm8k=96.7/1319,96.9/1319", "is no score"),
        ("gsm8k=/none/a,/none/b", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, told: str) -> None:
    with pytest.raises(FusionScopeError, match=told):
        parse(text)


def test_one_wrong_answer_after_a_perfect_score_is_no_drop() -> None:
    found = parse("gsm8k=1.0/1319,1318/1319")
    assert not found.changed and found.least_drop == pytest.approx(6 / 1319)
    assert parse("gsm8k=1.0/1319,1300/1319").dropped
