"""`fusionscope capture` of a draft layer: the trailing site, one site on another path, kinds that the model lacks."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.cli.main import main
from fusionscope.profiler.store import Store


def printed(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def told(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(list(arguments)) == 0
    return " ".join(out.getvalue().split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU, so triton declines otherwise")
def test_a_draft_layer_has_the_trailing_site_inside_its_finalize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests of kernels in this process turn the interpreter on, and the ranks would inherit it.
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    sizes = ["--tp", "2", "--batch", "2", "--context", "256", "--replays", "3", "--device", "cpu", "--name", "t"]
    paths = ["--paths", "ar_norm:trailing@0=triton"]
    store = ["--store", str(tmp_path)]
    printed("capture", "--model", "deepseek-v3-nextn", *sizes, *paths, *store)
    info = Store(tmp_path).load("t").info
    assert (info.model, info.layers, info.paths) == ("deepseek-v3-nextn", 1, {"ar_norm:trailing@0": "triton"})
    assert [(site.boundary, site.subtype, site.path) for site in info.declines] == [("ar_norm", "trailing", "split")]
    for command, words in (("show", "declined"), ("attribute", "Declined at")):
        text = told(command, "t", *store)
        assert words in text and "1 site: triton: Triton needs a GPU" in text and "[no_device]" in text
    found = {row["boundary"]: row for row in printed("attribute", "t", *store)["boundaries"]}
    assert found["ar_norm"]["subtypes"] == {"no_residual": 1, "residual": 1, "trailing": 1}
    assert found["ar_norm"]["nested"] == {"moe_finalize": 1}
    assert (found["moe_finalize"]["sites"], found["mhc_post"]["sites"]) == (1, 0)
    predicted = printed("estimate", "t", "--boundary", "ar_norm:trailing", "--speedup", "2", *store)
    law = predicted["amdahl"]
    assert predicted["sites"] == 1 and law["share"] > 0 and law["gain"] == pytest.approx(law["share"] / 2)
