from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_traces import GEMM, Launch, kernels

from fusionscope.analysis import rulecheck, ruleset
from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.patterns import SEARCHED, compiled, found_in
from fusionscope.analysis.rulefile import parse
from fusionscope.analysis.ruleset import AdHoc
from fusionscope.analysis.tables import report
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

COPY, QK, ROPE, STORE = (
    "direct_copy_kernel_cuda",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_",
    "rotary_embedding_kernel",
    "store_kvcache",
)


def sequence(names: Sequence[str]) -> list[Launch]:
    return [(name, 10 * k, 5) for k, name in enumerate(names)]


def run_of(names: Sequence[str], **info: object) -> Run:
    return Run(RunInfo(**info), Trace(kernels=kernels([sequence(names)])), Path())  # type: ignore[arg-type]


def columns(found: Analysed, kind: str = "mine") -> list[tuple[int, ...]]:
    return [s.columns for s in found.attribution.sites[kind]]


def matches(tmp_path: Path, names: Sequence[str], form: str, more: str = "") -> list[tuple[int, ...]]:
    """Sites of a boundary whose split form is `form` (inside the braces) on a stream of kernels."""
    file = tmp_path / "mine.toml"
    file.write_text(f"[[boundary]]\nname = 'mine'\nsplit = [{{ {form} }}]\n{more}")
    return columns(analyse(run_of(names), rules=[file]))


LAYER = [GEMM, COPY, QK, COPY, QK, ROPE, STORE]


def test_absorbed_copies_go_with_the_boundary_and_skipped_ones_stay(tmp_path: Path) -> None:
    names = LAYER * 2
    element = (
        "sequence = [{{ role = 'copy', {0} = true }}, 'qk_norm', {{ role = 'copy', {0} = true }}, 'qk_norm', 'rope']"
    )
    assert matches(tmp_path, names, element.format("absorb")) == [(1, 2, 3, 4, 5), (8, 9, 10, 11, 12)]
    assert matches(tmp_path, names, element.format("skip")) == [(2, 4, 5), (9, 11, 12)]
    short = "sequence = ['qk_norm', 'qk_norm', 'rope'], {} = ['copy']"
    assert matches(tmp_path, names, short.format("absorb")) == [(2, 3, 4, 5), (9, 10, 11, 12)]
    assert matches(tmp_path, names, short.format("skip")) == [(2, 4, 5), (9, 11, 12)]
    whole = "sequence = ['qk_norm', 'qk_norm', 'rope']"
    assert matches(tmp_path, names, whole) == []
    assert matches(tmp_path, names, whole, "skip = ['copy']") == [(2, 4, 5), (9, 11, 12)]


def test_what_lies_between_takes_as_few_launches_as_it_must(tmp_path: Path) -> None:
    wide = "sequence = [{ name = '^a$' }, { name = '^b$' }], skip = [{ name = '.' }]"
    assert matches(tmp_path, ["a", "x", "b", "a", "y", "z", "b"], wide) == [(0, 2), (3, 6)]


def test_optional_repeat_and_any_of(tmp_path: Path) -> None:
    either = "{ any_of = [{ name = '^b$' }, { name = '^c$' }] }"
    one = f"sequence = [{{ name = '^a$' }}, {{ name = '^x$', repeat = true }}, {either}]"
    assert matches(tmp_path, ["a", "x", "x", "x", "c", "a", "b", "a", "x", "b"], one) == [(0, 1, 2, 3, 4), (7, 8, 9)]
    two = "sequence = [{ name = '^a$' }, { name = '^x$', repeat = 2, optional = true }, { name = '^b$' }]"
    assert matches(tmp_path, ["a", "x", "b", "a", "x", "x", "b", "a", "b"], two) == [(0, 1, 2), (3, 4, 5, 6), (7, 8)]
    some = "sequence = [{ name = '^a$' }, { name = '^x$', repeat = [1, 2] }]"
    assert matches(tmp_path, ["a", "x", "x", "x", "a", "x"], some) == [(0, 1, 2), (4, 5)]


def test_an_element_gives_back_what_the_rest_needs(tmp_path: Path) -> None:
    form = "sequence = [{ name = '^a$', repeat = true }, { name = '^a$' }, { name = '^b$', optional = true }]"
    assert matches(tmp_path, ["a", "a", "a", "b", "a"], form) == [(0, 1, 2, 3)]


@settings(max_examples=60, deadline=None)
@given(
    st.text("abx", min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from("abx"), st.sampled_from(["", "?", "+", "*", "{1,2}"])), min_size=1, max_size=4),
)
def test_a_form_matches_what_the_regular_expression_matches(text: str, places: list[tuple[str, str]]) -> None:
    """Of all ends the furthest is taken, so the longest match of the same regular expression is the truth."""
    import re

    amounts = {"": {}, "?": {"optional": True}, "+": {"repeat": True}, "*": {"repeat": True, "optional": True}}
    amounts["{1,2}"] = {"repeat": [1, 2]}
    if all(amount in "?*" and amount for _, amount in places):
        return
    entry = {
        "name": "mine",
        "split": [{"sequence": [{"name": f"^{letter}$", **amounts[amount]} for letter, amount in places]}],
    }
    from fusionscope.analysis.rulefile import _boundary

    rule = _boundary("test", entry)
    pattern = re.compile("".join(letter + amount for letter, amount in places))
    expected, at = [], 0
    while at < len(text):
        ends = [end for end in range(len(text), at, -1) if pattern.fullmatch(text, at, end)]
        expected += [tuple(range(at, ends[0]))] if ends else []
        at = ends[0] if ends else at + 1
    found = analyse(run_of(list(text)))
    rules = ruleset.Rules((), (rule,))
    from fusionscope.analysis.matching import match_sites

    sites = match_sites(found.forward, [""] * len(text), list(text), list(text), rules)["mine"]
    assert [s.columns for s in sites] == expected


def test_twenty_thousand_launches_are_matched(tmp_path: Path) -> None:
    """The old way to match went over the rest of the stream for every launch: minutes here."""
    file = tmp_path / "mine.toml"
    many = "{ name = 'k', repeat = true }, { name = 'k', optional = true }, " * 6
    file.write_text(f"[[boundary]]\nname = 'mine'\nsplit = [{{ sequence = [{many} {{ name = 'end' }}] }}]")
    assert columns(analyse(run_of(["k"] * 20_000), rules=[file])) == []


def test_names_match_mangled_or_demangled(tmp_path: Path) -> None:
    assert matches(tmp_path, [QK], "sequence = [{ name = 'Li64ELi8' }]") == [(0,)]


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", r"(\w+::)*k", "(?:a?){40}x", "a.*b.*c.*d.*e.*f.*g"]
)
def test_patterns_that_can_take_endless_time_are_refused(pattern: str) -> None:
    with pytest.raises(FusionScopeError, match="endless time"):
        compiled("mine.toml", pattern)


def test_the_shipped_patterns_are_bounded_on_names_made_against_them() -> None:
    # Without the bounds this does not end; benchmarks/rules.py has the times.
    rules = ruleset.load(["attention"])
    for name in ("a" * 100_000, "triton_red_fused_" + "add" * 20_000, "I" + "Li1E" * 20_000, "msccl" * 20_000):
        rules.role_of(name)
    assert not found_in(compiled("", "b"), "a" * SEARCHED + "b")


@pytest.mark.parametrize(
    "text,says",
    [
        ("split=[{sequence=[{role='a', name='b'}]}]", "one of 'role', 'name' and 'any_of'"),
        ("split=[{sequence=[{any_of=[]}]}]", "empty 'any_of'"),
        ("split=[{sequence=[{role='a', absorb=true, skip=true}]}]", "both 'absorb' and 'skip'"),
        ("split=[{sequence=[{role='a', skip=true}]}]", "not optional"),
        ("split=[{sequence=[{role='a', absorb=true, repeat=2}, 'b']}]", "which it is anyway"),
        ("split=[{sequence=[{role='a', repeat=[3, 1]}]}]", "least, most"),
        ("split=[{sequence=[{role='a', repeat=5000}]}]", "up to 1000"),
        ("split=[{sequence=[{role='a', optional='yes'}]}]", "true or false"),
        ("split=[{sequence=[3]}]", "neither a role nor a table"),
        ("split=[{sequence='a'}]", "must be a list"),
        ("split='a'", "must be a list"),
        ("split=['a']", "table with a 'sequence'"),
        ("split=[{sequence=['a','b'], absorb=['c'], skip=['d']}]", "both 'absorb' and 'skip'"),
        ("split=[{sequence=['a']}]\nexpect_sites='many'", "expect_sites"),
        ("split=[{sequence=['a']}]\nsubtype_by_last=3", "subtype_by_last"),
    ],
)
def test_bad_elements_are_named(text: str, says: str) -> None:
    with pytest.raises(FusionScopeError, match=says) as caught:
        parse("mine.toml", f"[[boundary]]\nname='k'\n{text}")
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize("text", ["role = 3", "[boundary]\nname='a'", "boundary = ['a']"])
def test_tables_in_another_form_are_named(text: str) -> None:
    with pytest.raises(FusionScopeError, match=r"\[\["):
        parse("mine.toml", text)


def test_a_boundary_of_the_command_line() -> None:
    names = LAYER * 3
    by_name = analyse(run_of(names), rules=[AdHoc("mine=rotary_embedding;store_kvcache")])
    by_role = analyse(run_of(names), rules=[AdHoc("mine = rope; kv_write")])
    assert columns(by_name) == columns(by_role) == [(5, 6), (12, 13), (19, 20)]
    for bad in ("mine", "mine=", "a b=rope", "mine=rope;;kv_write", "=rope"):
        with pytest.raises(FusionScopeError, match="KIND=ELEMENT"):
            analyse(run_of(names), rules=[AdHoc(bad)])


def test_a_users_kind_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[[boundary]]\nname = 'ar_norm'\nsplit = [{ sequence = ['rope'] }]")
    assert columns(analyse(run_of(LAYER), rules=[file]), "ar_norm") == [(5,)]


@pytest.mark.parametrize(
    "expect,layers,said", [("'layers'", 2, 0), ("'layers'", 3, 1), ("'2 layers'", 1, 0), ("2", -1, 0), ("3", -1, 1),
                           ("'layers'", -1, 0)],
)  # fmt: skip
def test_the_expected_number_of_sites_is_checked(expect: str, layers: int, said: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"[[boundary]]\nname = 'mine'\nsplit = [{{ sequence = ['rope'] }}]\nexpect_sites = {expect}")
    found = analyse(run_of(LAYER * 2, layers=layers), rules=[file])
    told = [w for w in found.attribution.warnings if "mine has 2 sites and its rules expect" in w]
    assert len(told) == said
    by_user = analyse(run_of(LAYER * 2, settings={"layers": "2"}), rules=[file])
    assert by_user.layers == 2


def test_check_names_the_element_that_failed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[[role]]\nrole = 'never'\npattern = 'no_such_kernel'\n"
        "[[boundary]]\nname = 'mine'\nskip = ['copy']\n"
        "split = [{ sequence = ['qk_norm', 'qk_norm', 'rope', 'kv_write'] }]\nexpect_sites = 'layers'"
    )
    names = [*LAYER, GEMM, COPY, QK, COPY, QK, ROPE, GEMM, *LAYER[:-1]]
    roles, kinds = parse(str(file), file.read_text())
    found = analyse(run_of(names), rules=[file])
    [checked] = rulecheck.check(found, kinds)
    assert (checked.sites, checked.expected, checked.wants_layers, checked.fits) == (1, None, True, True)
    assert [c for c, _, _ in checked.first] == [2, 4, 5, 6]
    assert {(m.element, m.wanted, m.found, m.role, m.times, m.launch) for m in checked.near if m.element == 7} == {
        (7, "role kv_write", GEMM, "gemm", 1, 13),
        (7, "role kv_write", "", "", 1, -1),
    }
    assert [role.role for role in rulecheck.unused(found, roles)] == ["never"]


def test_mi300x_boundaries_before_attention() -> None:
    sample = Path(__file__).parents[3] / "shared" / "samples" / "kineto_mi300x_sglang_decode.json.gz"
    if not sample.is_file():
        pytest.skip("the sample traces (../shared/samples) are not here")
    skipping = AdHoc("mine=rotary_embedding;store_kvcache")
    found = analyse(Run(RunInfo(layers=36), read_trace(sample), Path()), rules=["attention", skipping])
    rows = {row["boundary"]: row for row in report(found.attribution, [])["boundaries"]}  # type: ignore[attr-defined]
    assert (rows["rope_kv"]["sites"], rows["rope_kv"]["launches"]) == (36, 72)
    assert (rows["mine"]["sites"], rows["mine"]["launches"]) == (36, 72)
    assert (rows["qk_norm_rope"]["sites"], rows["qk_norm_rope"]["launches"]) == (36, 180)
    times = {k["role"]: k["kernel_time_ns"] for kind in ("rope_kv", "qk_norm_rope") for k in rows[kind]["kernels"]}
    assert times == {"qk_norm": 331_421, "copy": 346_648, "rope": 195_815, "kv_write": 173_545}
    assert not found.attribution.warnings
    skip = [{"role": "copy", "skip": True}, "qk_norm", {"role": "copy", "skip": True}, "qk_norm", "rope"]
    from fusionscope.analysis.rulefile import _boundary

    [kept] = rulecheck.check(found, [_boundary("t", {"name": "skipped", "split": [{"sequence": skip}]})])
    assert (kept.sites, len(kept.first)) == (36, 3)


@pytest.mark.parametrize(
    "name,role",
    [
        ("void mul_mat_vec_q<(ggml_type)13, 1, false, false>(void const*)", "gemm"),
        ("quantize_q8_1(float const*, void*)", "quant"),
        ("void rms_norm_f32<1024, true, false>(float const*)", "rms_norm"),
        ("void gated_delta_net_cuda<128, false, false>(float const*)", "attention"),
        ("void k_get_rows_float<float, float>(float const*)", "gather"),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(int)", "kv_write"),
        ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(int)", "kv_write"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope"),
        ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true>(float*)", "rope"),
        ("kernel_unified_attention_3d", "attention"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_", "qk_norm"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_", "rms_norm"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_", "residual_rms_norm"),
        ("void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, true>(void*)", "fused_qk_norm_rope"),
        ("triton_poi_fused__to_copy_1", "copy"),
        ("triton_red_fused__to_copy_add_mean_mul_rsqrt_3", "residual_rms_norm"),
        ("void europe_kernel<int>(int)", ""),
    ],
)
def test_roles_by_name(name: str, role: str) -> None:
    assert ruleset.load().role_of(name) == role


_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 3000), st.floats(allow_nan=False), st.text("ab(*+[")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["name", "role", "split", "fused", "sequence", "any_of", "repeat", "skip", "absorb", "optional",
                 "subtype", "unless_in", "expect_sites", "subtype_by_last", "subtypes", "pattern"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["split", "fused", "absorb", "skip", "expect_sites"]), _JUNK, max_size=3), _JUNK)
def test_any_structure_is_read_or_refused_in_a_sentence(entry: dict[str, object], element: object) -> None:
    from fusionscope.analysis.rulefile import _boundary

    for data in ({"name": "k", **entry}, {"name": "k", "split": [{"sequence": ["gemm", element]}]}, {"name": element}):
        try:
            rule = _boundary("mine.toml", data)
        except FusionScopeError as error:
            assert "mine.toml" in str(error)
        else:
            assert rule.forms
