"""`fusionscope tune` on the CPU: what it measures, writes and says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from fusionscope.cli.tune import render, tune
from fusionscope.fusion_runtime import measuring, tuning
from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.capture.tuned import tuned
from fusionscope.profiler.progress import quiet


@pytest.fixture(autouse=True)
def few_paths(monkeypatch, tmp_path):
    """Compiling for the CPU takes seconds and shows nothing more here."""
    monkeypatch.setattr(measuring, "path_names", lambda: ("split", "triton", "flashinfer", "auto"))
    monkeypatch.setenv(tuning.ENVIRONMENT, str(tmp_path / "table.json"))


def test_the_table_is_what_auto_reads(tmp_path, capsys):
    tune("tiny", tokens="2,1", device="cpu", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == str(tmp_path / "table.json") and told["gpu"] == "cpu"
    places = [(row["boundary"], row["hidden"], row["tp"], row["tokens"]) for row in told["rows"]]
    assert places == [(kind, 64, 1, count) for kind in ("mhc_post_pre", "mhc_post", "moe_finalize") for count in (1, 2)]
    for row in told["rows"]:
        assert set(row["us"]) == {"split"} and row["us"]["split"] > 0 and not row["emulated"]
        # A path either has a time or says why not.
        assert set(row["declined"]) == {"triton", "flashinfer"}
        assert row["declined"]["flashinfer"].startswith("FlashInfer is not installed")
    table = tuning.read(tmp_path / "table.json", "cpu")
    assert sorted((row.boundary, row.tokens) for row in table.rows) == sorted((p[0], p[3]) for p in places)
    assert len(told["gates"]) == 3 and all("fuse" in gate for gate in told["gates"])


def test_other_rows_of_the_table_stay(tmp_path):
    path = tmp_path / "own.json"
    kept = tuning.Row("ar_norm", 4096, 2, 1, {"split": 2.0, "triton": 1.0})
    tuning.write(tuning.Table("cpu", [kept]), path)
    done = []
    found = tuned("tiny", 1, "1", "cpu", path, lambda *step: done.append(step))
    assert kept in tuning.read(path).rows and len(tuning.read(path).rows) == 4
    assert [step[:2] for step in done] == [(1, 3), (2, 3), (3, 3)]
    assert found.path == path and set(found.declined()) == {"triton", "flashinfer"}
    assert render(found) is not None


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    def until(count):
        def told(done, total, what):
            if done == count:
                raise KeyboardInterrupt

        return told

    found = tuned("tiny", 1, "1,2", "cpu", tmp_path / "t.json", until(2))
    assert found.early and len(found.measured) == len(tuning.read(tmp_path / "t.json").rows) == 2
    assert found.document()["early"] is True
    assert not tuned("tiny", 1, "1", "cpu", tmp_path / "t.json", quiet).early


def test_a_model_with_norms_is_measured_through_them(tmp_path):
    found = tuned("llama", 1, "1", "cpu", tmp_path / "t.json", quiet)
    assert [one.row.boundary for one in found.measured] == ["ar_norm"]


@pytest.mark.parametrize(("tokens", "tp", "said"), [
    ("0,4", 1, "--tokens takes numbers from 1 on"),
    ("many", 1, "not 'many'"),
    ("1", 2, "torchrun --no-python --nproc-per-node 2"),
])  # fmt: skip
def test_wrong_use_names_the_next_step(tokens, tp, said):
    with pytest.raises(CaptureError, match=said):
        tuned("tiny", tp, tokens, "cpu", None, quiet)


def test_the_command_is_there_and_ends_with_2_on_wrong_use():
    command = [sys.executable, "-c", "from fusionscope.cli.main import run; run()", "tune", "tiny", "--tokens", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--tokens takes numbers" in " ".join(done.stderr.split())
