"""`fusionscope capture --engine …` and `capture -- COMMAND`, with stand-ins for the engine and the profiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_programs import install


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key, value in install(tmp_path / "bin", tmp_path / "state").items():
        monkeypatch.setenv(key, value)
    return tmp_path / "state"


def test_an_engine_is_captured_and_reported(fusionscope: Any, fake: Path) -> None:
    options = ("--engine", "sglang", "--model-path", "M", "--tp", "2", "--batch", "8", "--profiler", "nsys")
    answer = fusionscope("capture", *options, "--name", "before")
    assert answer.code == 0, answer.err
    assert "ar_norm" in answer.out and "If it were fused" in answer.out
    found = fusionscope("attribute", "before", "--json").json
    assert (found["forward"]["launches"], found["forward"]["replays"]) == (6, 3)


def test_a_command_is_captured_as_json(fusionscope: Any, fake: Path) -> None:
    line = ("--profiler", "rocprofv3", "--json", "--", sys.executable, "-c", "print(1)")
    answer = fusionscope("capture", *line)
    assert answer.code == 0, answer.err
    assert sorted(answer.json) == ["labels", "path", "run"]


@pytest.mark.parametrize(
    "args,says",
    [
        ((), "Say what to capture"),
        (("--model", "tiny", "--engine", "sglang"), "Say what to capture"),
        (("--model", "tiny"), "--model needs --tp"),
        (("--engine", "sglang", "--profiler", "torch"), "--engine needs --model-path"),
        (("--engine", "sglang", "--model-path", "M", "--profiler", "torch", "--replays", "0"), "--replays must be"),
        (("--engine", "sglang", "--model-path", "M", "--profiler", "torch", "--tp", "0"), "--tp must be"),
        (("--engine", "llama", "--model-path", "M", "--profiler", "torch"), "sglang, vllm, trtllm"),
    ],
)
def test_wrong_use_is_one_sentence(fusionscope: Any, args: tuple[str, ...], says: str) -> None:
    answer = fusionscope("capture", *args)
    assert answer.code == 2 and says in answer.err and answer.err.count("\n") == 1
