from __future__ import annotations

import pytest

from fusionscope.analysis.names import short


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
