"""Rules by name for an exit that is joined to the read behind it: counted at the attention, never as the FFN's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from literal_traces import Launch, kernels

from fusionscope.analysis import ruleset
from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.compare import compare
from fusionscope.analysis.sites import Site
from fusionscope.analysis.waiting import MEETING
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

Made = Callable[..., Analysed]

ATTENTION, EXPERTS = "_causal_conv1d_update_kernel", "fused_moe_kernel"
READ = ("sm90_tf32_hc_prenorm_gemm_impl", "mhc_pre_big_fuse_with_norm_tilelang_kernel")
OWN_READ = ("mhc_pre_gemm_sqrsum_kernel", "mhc_pre_big_fuse_with_norm_kernel")
AR = "all_reduce_1shot_push_kernel"
LAYERS = 3

#: Launches of the attention's exit up to the read's end.
SGLANG = (AR, "mhc_fused_post_pre_fma_tilelang_kernel", READ[1])
SPLIT = ("one_shot_all_reduce_kernel", "mhc_post_kernel", *OWN_READ)
POST_FUSED = ("ar_hc_post_oneshot_kernel", *OWN_READ)
JOINED = ("ar_hc_post_pre_oneshot_kernel", OWN_READ[1])


def forward(exit: tuple[str, ...], read: tuple[str, ...] = OWN_READ) -> list[Launch]:
    """Layers of read, attention, its exit and read, experts, their exit."""
    names = [*(*read, ATTENTION, *exit, EXPERTS, AR, "mhc_post_tilelang_kernel") * LAYERS, "_mhc_stream_mean_kernel"]
    return [(name, 10 * place, 5) for place, name in enumerate(names)]


def told(found: Analysed, kind: str) -> Counter[tuple[str, str, int]]:
    sites: list[Site] = found.attribution.sites[kind]
    return Counter((s.subtype, s.form, len(s.columns)) for s in sites)


@pytest.mark.parametrize(
    ("exit", "form", "launches"),
    [(SPLIT, "split", 4), (POST_FUSED, "split", 3), (JOINED, "fused", 2), (SGLANG, "fused", 3)],
)
def test_the_attentions_exit_and_its_read_are_a_site(
    made: Made, exit: tuple[str, ...], form: str, launches: int
) -> None:
    found = made([forward(exit)] * 2)
    assert told(found, "mhc_post_pre") == {("attn_exit", form, launches): LAYERS}
    # The read of the next layer, behind the FFN's exit, belongs to no site.
    assert found.attribution.rungs["mhc_post_pre"] == 4


def test_a_joined_launch_is_the_attentions_post_and_never_the_ffns(made: Made) -> None:
    found = made([forward(JOINED)])
    assert told(found, "mhc_post") == {("attn_exit", "fused", 1): LAYERS, ("ffn_exit", "split", 2): LAYERS}
    assert found.attribution.nested("mhc_post") == {"mhc_post_pre": LAYERS}
    assert found.attribution.nested("mhc_post_pre") == {}


def test_post_and_pre_in_one_of_an_engine_is_no_mhc_post_site(made: Made) -> None:
    """Its all-reduce and write are the attention's: the FFN's sites stay as many as there are."""
    found = made([forward(SGLANG, READ)])
    assert told(found, "mhc_post") == {("ffn_exit", "split", 2): LAYERS}
    assert ruleset.load().role_of(SGLANG[1]) == "fused_mhc_post_pre"
    aiter = "_ZN5aiter37mhc_fused_post_pre_gemm_sqrsum_kernelIDF16bLi4EEEvPT_S1_S1_"
    assert ruleset.load().role_of(aiter) == "fused_mhc_post_pre"


def test_the_ranks_meet_in_a_joined_launch() -> None:
    assert ruleset.load().role_of(JOINED[0]) in MEETING


def test_an_exit_whose_attention_nobody_knows_is_left_out(made: Made) -> None:
    launches = [(name, 10 * place, 5) for place, name in enumerate([*READ, "unknown_kernel", *SPLIT])]
    assert made([launches]).attribution.sites["mhc_post_pre"] == []


SUBTYPES = """
[[boundary]]
name = "pair"
split = [{ sequence = [{ name = "one" }, { name = "two" }] }]
subtype_by_last = { attention = "early", moe_gemm = "late" }
subtypes = %s
"""


@pytest.mark.parametrize(("subtypes", "kept"), [('["late"]', ["late"]), ("[]", ["", "early", "late"])])
def test_sites_of_other_subtypes_are_none(tmp_path: Path, subtypes: str, kept: list[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SUBTYPES % subtypes)
    names = ["one", "two", ATTENTION, "one", "two", EXPERTS, "one", "two"]
    trace = Trace(kernels=kernels([[(name, 10 * place, 5) for place, name in enumerate(names)]]))
    found = analyse(Run(RunInfo(), trace, Path()), rules=[file])
    assert [site.subtype for site in found.attribution.sites["pair"]] == kept


def test_subtypes_that_are_no_list_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SUBTYPES % '"late"')
    with pytest.raises(FusionScopeError, match="'subtypes' must be a list"):
        ruleset.load([file])


@pytest.mark.parametrize(
    ("base", "candidate", "boundary"),
    [
        (SPLIT, JOINED, "mhc_post_pre"),
        (POST_FUSED, JOINED, "mhc_post_pre"),
        (SPLIT, POST_FUSED, "mhc_post:attn_exit"),
    ],
)
def test_a_comparison_names_the_kind_that_was_fused(
    made: Made, base: tuple[str, ...], candidate: tuple[str, ...], boundary: str
) -> None:
    found = compare(made([forward(base)] * 2), made([forward(candidate)] * 2))
    assert found.fired is not None and (found.fired.boundary, found.fired.sites) == (boundary, LAYERS)
