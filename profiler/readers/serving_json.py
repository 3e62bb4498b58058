"""Results that SGLang's bench_serving (JSON lines) and vLLM's `vllm bench serve` (JSON, or appended lines) write."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler.errors import FusionScopeError


@dataclass(frozen=True)
class ServingRun:
    """One run of a serving benchmark; None is not told."""

    file: str
    concurrency: int
    #: Time per output token: the median over requests where it was written, else the mean.
    tpot_ms: float
    ttft_ms: float | None
    #: Output tokens a second.
    throughput: float | None
    #: Tokens a step of speculative decoding.
    accept_length: float | None


def read_serving(files: Iterable[str | Path]) -> list[ServingRun]:
    """The runs of several files.

    Raises FusionScopeError for a file that cannot be read, or a run without concurrency or time per token.
    """
    found = [run for path in files for run in _read(Path(path))]
    if not found:
        raise FusionScopeError("No serving result was given: name the JSON files that the benchmark wrote.")
    return found


def _read(path: Path) -> list[ServingRun]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FusionScopeError(f"{path} cannot be read ({error.strerror}): give a serving result.") from error
    try:
        whole = msgspec.json.decode(text)
        records = whole if isinstance(whole, list) else [whole]
    except (msgspec.DecodeError, UnicodeDecodeError):
        records = [_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [_run(path, record) for record in records]


def _line(path: Path, number: int, line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FusionScopeError(
            f"{path}, line {number}: this is no JSON ({error}); give what bench_serving or vllm bench serve wrote."
        ) from error


def _run(path: Path, record: Any) -> ServingRun:
    if not isinstance(record, dict):
        raise FusionScopeError(f"{path} holds something that is no serving result: give what the benchmark wrote.")
    asked = _number(record, "max_concurrency")
    if asked is None:
        raise FusionScopeError(
            f"{path} does not tell its concurrency: run the benchmark with --max-concurrency, so that arms can be "
            "matched."
        )
    tpot = next((v for key in ("median_tpot_ms", "mean_tpot_ms") if (v := _number(record, key))), None)
    if tpot is None:
        raise FusionScopeError(f"{path} has no time per output token (median_tpot_ms): no request had two tokens.")
    return ServingRun(
        file=path.name,
        concurrency=int(asked),
        tpot_ms=tpot,
        ttft_ms=_number(record, "median_ttft_ms") or _number(record, "mean_ttft_ms"),
        throughput=_number(record, "output_throughput"),
        accept_length=_number(record, "accept_length") or _number(record, "spec_decode_acceptance_length"),
    )


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    # A whole number of JSON may be too large for a float64.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < sys.float_info.max:
        return None
    return float(value)
