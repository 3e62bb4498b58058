from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import SUBTYPES, DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.errors import BadPathChoice, RanksDisagree
from fusionscope.fusion_runtime.paths import registry
from fusionscope.fusion_runtime.paths.registry import path_names
from fusionscope.fusion_runtime.paths.split import SplitPath


def test_default_is_split_everywhere() -> None:
    choice = PathChoice.parse("")
    assert {choice.path_for(b, s) for b, subtypes in SUBTYPES.items() for s in subtypes} == {"split"}


def test_subtype_goes_before_boundary_whatever_the_order() -> None:
    for text in ("mhc_post=triton, mhc_post:attn_exit=split", "mhc_post:attn_exit=split,mhc_post=triton"):
        choice = PathChoice.parse(text)
        assert choice.path_for("mhc_post", "attn_exit") == "split"
        assert choice.path_for("mhc_post", "ffn_exit") == "triton"
        assert choice.path_for("moe_finalize", "ffn_exit") == "split"


def test_a_layer_goes_before_its_kind() -> None:
    choice = PathChoice.parse("mhc_post:ffn_exit@3=triton,mhc_post@4=inductor,mhc_post:attn_exit=inductor")
    assert choice.path_for("mhc_post", "ffn_exit", 3) == "triton"
    assert choice.path_for("mhc_post", "attn_exit", 3) == "inductor"
    assert choice.path_for("mhc_post", "ffn_exit", 4) == "inductor"
    assert choice.path_for("mhc_post", "ffn_exit", 5) == "split"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mhc_post", "is not BOUNDARY=PATH"),
        ("mhc_pots=split", "no boundary 'mhc_pots': choose from ar_norm, moe_finalize, mhc_post"),
        ("mhc_post=cuda", "no path 'cuda': choose from split, inductor, triton"),
        ("mhc_post:residual=split", "no subtype 'residual': choose from attn_exit, ffn_exit"),
        ("mhc_post:=split", "no subtype ''"),
        ("mhc_post=", "no path ''"),
        ("mhc_post@=split", "'' is not a layer: write for example mhc_post@3=split"),
        ("mhc_post:ffn_exit@-1=split", "'-1' is not a layer"),
        ("mhc_post=split,mhc_post=triton", "given two paths, split and triton"),
    ],
)
def test_errors_name_the_valid_words(text: str, message: str) -> None:
    with pytest.raises(BadPathChoice, match=message):
        PathChoice.parse(text)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSIONSCOPE_PATHS", raising=False)
    assert str(PathChoice.from_environment()) == ""
    monkeypatch.setenv("FUSIONSCOPE_PATHS", "moe_finalize=inductor")
    assert PathChoice.from_environment().path_for("moe_finalize", "ffn_exit") == "inductor"


kinds = [*SUBTYPES, *(f"{b}:{s}" for b, subtypes in SUBTYPES.items() for s in subtypes)]
sites = [*kinds, *(f"{kind}@{layer}" for kind in kinds for layer in (0, 17))]


@given(st.dictionaries(st.sampled_from(sites), st.sampled_from(path_names())))
def test_printing_and_parsing_are_inverse(chosen: dict[str, str]) -> None:
    assert PathChoice.parse(str(PathChoice(chosen))) == PathChoice(chosen)


def test_what_a_path_is_set_to_is_held_against_the_other_ranks() -> None:
    numbers: list[int] = []

    class Asked(SingleGroup):
        def same(self, number: int) -> bool:
            numbers.append(number)
            return len(numbers) < 4

    class Tuned(SplitPath):
        name = "tuned"
        table = "a"

        def settings(self) -> str:
            return self.table

    registry.register_path("tuned", Tuned)
    try:
        for table in ("a", "a", "b"):
            Tuned.table = table
            DecodeContext(Asked(), reference_ops, PathChoice.parse("ar_norm=tuned"))
        assert numbers[0] == numbers[1] != numbers[2]
        with pytest.raises(RanksDisagree, match="rank 0 was given the paths 'ar_norm=tuned'"):
            DecodeContext(Asked(), reference_ops, PathChoice.parse("ar_norm=tuned"))
    finally:
        registry.forget_path("tuned")


def test_a_path_that_was_taken_out_again_is_named() -> None:
    with pytest.raises(BadPathChoice, match=r"no path 'gone': choose from split, .*, or register it"):
        DecodeContext(SingleGroup(), reference_ops, PathChoice({"ar_norm": "gone"}))
