"""`fusionscope ab` as a user runs it."""

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


def printing(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text})"]


def test_two_commands_get_a_measured_verdict_and_a_run(fusionscope: Any) -> None:
    slow, fast = printing("100.0"), printing("90.0")
    answer = fusionscope("ab", "--blocks", 4, "--name", "mine", "--json", "--", *slow, "--", *fast)
    assert answer.code == 0, answer.err
    found = answer.json
    assert (found["base_ns"], found["candidate_ns"], found["saving"]["ns"]) == (100_000, 90_000, 10_000)
    assert found["verdict"]["class"] == "worth_merging" and found["verdict"]["kind"] == "measured"
    assert found["saving"]["blocks"] == 4 and found["settings"]["ab"] == "commands" and found["fired"]
    again = fusionscope("ab", "--run", "mine", "--json")
    assert again.json == found
    assert "mine" in fusionscope("runs").out
    assert fusionscope("show", "mine").code == 0


def test_for_people_the_verdict_is_a_sentence(fusionscope: Any) -> None:
    answer = fusionscope("ab", "--blocks", 4, "--", *printing("100.0"), "--", *printing("100.0"))
    assert answer.code == 0, answer.err
    assert "not_measurable: No measurable difference" in answer.out and "each turn a process" in answer.out
    assert "To quote: Measured: the candidate saves" in answer.out


def test_blocks_too_few_to_judge_are_kept_all_the_same(fusionscope: Any) -> None:
    answer = fusionscope("ab", "--blocks", 2, "--", *printing("1.0"), "--", *printing("1.0"))
    assert answer.code == 2
    kept = answer.err.partition("is kept as run ")[2].strip().rstrip(".")
    assert fusionscope("runs", "--json").json["runs"][0]["run"] == kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_from_outside_keeps_the_blocks_and_leaves_no_temporary_folder(tmp_path: Path, number: int) -> None:
    turns, temporary, store = tmp_path / "turns", tmp_path / "tmp", tmp_path / "store"
    temporary.mkdir()
    arm = [sys.executable, "-S", "-c", f"open({str(turns)!r}, 'a').write('x'); print(1.0)"]
    command = [sys.executable, "-c", "from fusionscope.cli.main import run; run()", "ab", "--blocks", "100000"]
    environment = {**os.environ, "TMPDIR": str(temporary), "FUSIONSCOPE_STORE": str(store)}
    process = subprocess.Popen(
        [*command, "--json", "--", *arm, "--", *arm], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    # Five blocks of six turns; a person's terminal would send the arm the same, so the last turn may be cut.
    deadline = time.monotonic() + 60
    while (turns.stat().st_size if turns.exists() else 0) < 31:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert told["saving"]["blocks"] >= 5 and "ended early" in told["warnings"][0]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "two commands"),
        (("--blocks", 4, "--", "a"), "with `--` between them"),
        (("--model", "tiny", "--run", "x"), "Give either"),
        (("--model", "tiny"), "--candidate is missing"),
        (("--blocks", 2, "--", *printing("1.0"), "--", *printing("1.0")), "fewer than 4"),
        (("--run", "example"), "holds no two arms"),
    ],
)
def test_wrong_use_is_one_sentence(fusionscope: Any, arguments: tuple[object, ...], says: str) -> None:
    answer = fusionscope("ab", *arguments)
    assert answer.code == 2 and says in answer.err and not answer.out


def test_the_model_needs_a_gpu(fusionscope: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = fusionscope("ab", "--model", "tiny", "--tp", 4, "--candidate", "mhc_post=triton")
    assert answer.code == 2 and "needs a GPU" in answer.err and "fusionscope ab -- A -- B" in answer.err
