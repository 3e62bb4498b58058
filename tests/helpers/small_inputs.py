"""Small files of text that people give beside traces."""

from __future__ import annotations

#: A table of times that somebody measured.
BENCH = """tokens,split_us,fused_us,setting,gpu
1,12.5,7.1,isolated hot,H200
4,12.9,7.4,isolated-hot,H200
4,14.1,8.4,Isolated_Cold,H200
4,,8.0,in-context,H200
"""

#: Results of SGLang's and vLLM's serving benchmarks.
SGLANG = {
    "backend": "sglang",
    "request_rate": "inf",
    "max_concurrency": 4,
    "concurrency": 3.97,
    "accept_length": 2.7,
    "mean_tpot_ms": 10.4,
    "median_tpot_ms": 10.2,
    "median_ttft_ms": 333.0,
    "output_throughput": 391.0,
}
VLLM = {
    "max_concurrency": 16,
    "mean_tpot_ms": 12.5,
    "mean_ttft_ms": 90.0,
    "output_throughput": 1200.0,
    "spec_decode_acceptance_length": 3.1,
    "request_rate": "inf",
}
