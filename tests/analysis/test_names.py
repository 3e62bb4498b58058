from __future__ import annotations

import pytest

from fusionscope.analysis.names import distinct, short


@pytest.mark.parametrize(
    "name,expected",
    [
        ("one_shot_all_reduce_kernel", "one_shot_all_reduce_kernel"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)", "cross_device_reduce_1stage"),
        ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEvPNS_8RankDataES2_", "cross_device_reduce_2stage"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
            "multimem_all_reduce_kernel",
        ),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
            "fused_add_rms_norm_kernel",
        ),
        ("a`b|c\nd", "a_b_c_d"),
    ],
)
def test_last_identifier(name: str, expected: str) -> None:
    assert short(name) == expected


def test_long_names_are_cut() -> None:
    assert len(short("x" * 500)) == 60


def test_only_the_template_arguments_that_differ_tell_rows_apart() -> None:
    assert distinct(
        ["void a::k<1, b::T<2>, true>(int)", "void a::k<1, b::T<3>, true>(int)", "void j<7>(int)", "void q(int)",
         "void q(x<y>)", "void r<1>(int)", "void r<1, 2>(int)"]
    ) == {
        "void a::k<1, b::T<2>, true>(int)": "k<T<2>>",
        "void a::k<1, b::T<3>, true>(int)": "k<T<3>>",
        "void j<7>(int)": "j",
        "void q(int)": "q",
        "void q(x<y>)": "q #2",
        "void r<1>(int)": "r<1>",
        "void r<1, 2>(int)": "r<1, 2>",
    }  # fmt: skip


def test_distinct_names_stay_short_and_distinct() -> None:
    long = [f"void {'n' * 300}<{'m' * 300}{k}>(int)" for k in range(50)]
    found = distinct(long)
    assert len(set(found.values())) == 50 and max(map(len, found.values())) < 130
