"""The pages about the runtime: their code runs, and the table of gates is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from fusionscope.fusion_runtime import context, errors, norms
from fusionscope.fusion_runtime.gates import Gate
from fusionscope.fusion_runtime.paths import registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(context, "SUBTYPES", context.SUBTYPES)
    monkeypatch.setattr(norms, "_readers", dict(norms._readers))
    before = dict(context.SUBTYPES), set(registry.path_names())
    yield
    context.SUBTYPES.clear()
    context.SUBTYPES.update(before[0])
    for name in set(registry.path_names()) - before[1]:
        registry.forget_path(name)


@pytest.mark.parametrize("page", ["using-in-your-model", "adding-a-path", "adding-a-boundary"])
def test_the_code_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSIONSCOPE_PATHS", raising=False)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_example_path_runs_and_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fusionscope.fusion_runtime.boundaries import ar_norm
    from fusionscope.fusion_runtime.comm.single import SingleGroup
    from fusionscope.fusion_runtime.decode.model import make_context
    from fusionscope.fusion_runtime.ownership import PartialSum

    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-path.md").read_text(encoding="utf-8"), re.S)
    exec(compile(block, "page", "exec"), {})
    group = SingleGroup()
    ctx = make_context(group, "cpu", context.PathChoice.parse("ar_norm=careful"))
    norm = norms.Norm(torch.ones(8), 1e-5)
    for tokens in (16, 17):
        owed = PartialSum(torch.ones(tokens, 8), group)
        _, total = ar_norm.run(owed, torch.ones(tokens, 8), norm, subtype="residual", layer=0, ctx=ctx)
        assert total.eq(2).all()
    rows = ctx.recorder.rows
    assert [row.path for row in rows] == ["careful", "split"]
    assert rows[1].declined == "careful: 17 tokens are over the cap of 16 [tokens_over_cap]"


def test_the_table_of_gates_has_every_code_once_and_in_order() -> None:
    table = re.findall(r"^\| `([a-z_]+)` \|", (DOCS / "gates.md").read_text(encoding="utf-8"), re.M)
    assert table == [gate.value for gate in Gate]


def test_every_gate_is_used_by_some_path() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "fusion_runtime").rglob("*.py"))
    assert [gate.name for gate in Gate if f"Gate.{gate.name}" not in sources] == []


def test_the_errors_named_are_the_errors_there_are() -> None:
    text = (DOCS / "gates.md").read_text(encoding="utf-8")
    rest = {"RuntimeContractError", "BadPathChoice", "BadSpec"}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)} - rest
    assert {kind for kind in kinds if f"`{kind}`" not in text} == set()


def test_the_faults_named_have_the_tests_named() -> None:
    text = (DOCS / "gates.md").read_text(encoding="utf-8")
    folder = ROOT / "tests" / "fusion_runtime"
    named = re.findall(r"`(?:([a-z_/]+\.py)::)?(test_[a-z0-9_]+)`", text[text.index("## Faults") :])
    assert len(named) >= 29
    for file, test in named:
        source = (folder / (file or "test_known_bugs.py")).read_text(encoding="utf-8")
        assert f"def {test}(" in source, (file, test)
