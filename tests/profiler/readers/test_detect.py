"""Which reader, and what is said of a file that is no trace."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fusionscope.profiler.errors import FusionScopeError, UnreadableTrace
from fusionscope.profiler.readers import read_trace

SAMPLES = Path(__file__).parents[3] / "../shared/samples"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="../shared/samples is not here")
KINETO = (
    b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, '
    b'"args": {"device": 0, "stream": 7, "correlation": 3, "rank": 1, "graph node id": 8589934593}}], '
    b'"deviceProperties": [{"name": "G"}], "distributedInfo": {"rank": 0, "world_size": 2}}'
)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html>404</html>", "is a web page"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"Name,Duration\nk,1\n", "is no trace .it starts with b'Name,Duration"),
        (b"\x1f\x8b", "damaged or truncated gzip"),
        (b"\x1f\x8b\x08\x00garbage", "damaged or truncated gzip"),
        (gzip.compress(b"", mtime=0), "gzip file that holds empty"),
        (gzip.compress(b"hello", mtime=0), "gzip file that holds no trace"),
        (b"SQLite format 3\x00" + b"\x00" * 100, "damaged SQLite file"),
        (b'{"traceEvents": [', "ends in the middle"),
        (b"\xff\xfe[", "is no trace"),
    ],
)
def test_what_a_file_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace, match=says) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UnreadableTrace, match="cannot be opened"):
            read_trace(path)


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(gzip.compress(KINETO))
    assert len(read_trace(path).kernels) == 1


@needs_samples
def test_packed_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "without_ending"
    shutil.copy(SAMPLES / "synthetic_nsys_2gpu_node.sqlite.gz", path)
    assert len(read_trace(path).kernels) == 3264


@needs_samples
def test_a_truncated_export(tmp_path: Path) -> None:
    whole = (SAMPLES / "h200_ar_norm/split.nsys.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableTrace, match="damaged SQLite file"):
        read_trace(path)


def read_or_refuse(path: Path, content: bytes) -> None:
    """Whatever the bytes are: tables, or one sentence. Any other exception fails the test."""
    path.write_bytes(content)
    try:
        read_trace(path)
    except FusionScopeError as error:
        assert len(str(error)) > len(str(path))


fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


@fuzz
@given(start=st.sampled_from([b"", b"{", b"[", b"\x1f\x8b\x08\x00", b"SQLite format 3\x00"]), rest=st.binary())
def test_random_bytes(tmp_path: Path, start: bytes, rest: bytes) -> None:
    read_or_refuse(tmp_path / "junk", start + rest)


@fuzz
@given(
    cut=st.integers(0, len(KINETO)), at=st.integers(0, len(KINETO) - 1), byte=st.integers(0, 255), zipped=st.booleans()
)
@example(cut=len(KINETO), at=KINETO.index(b"1.5") + 1, byte=ord("9"), zipped=False)
def test_damaged_json(tmp_path: Path, cut: int, at: int, byte: int, zipped: bool) -> None:
    damaged = bytearray(KINETO)
    damaged[at] = byte
    content = gzip.compress(bytes(damaged)) if zipped else bytes(damaged)
    read_or_refuse(tmp_path / "junk", content[:cut])


odd = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
names = st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid"])
arguments = st.sampled_from(["device", "stream", "correlation", "rank", "graph id", "graph node id"])
categories = st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation", "gpu_memcpy"])


@fuzz
@given(
    events=st.lists(
        st.tuples(categories, st.dictionaries(names, odd, max_size=3), st.dictionaries(arguments, odd, max_size=4)),
        max_size=4,
    ),
    metadata=st.dictionaries(st.sampled_from(["baseTimeNanoseconds", "distributedInfo", "deviceProperties"]), odd),
)
def test_odd_values(
    tmp_path: Path, events: list[tuple[str, dict[str, object], dict[str, object]]], metadata: object
) -> None:
    import json

    base = {"ph": "X", "name": "cudaLaunch", "ts": 3, "dur": 2, "pid": 1, "tid": 1}
    listed = [{**base, "cat": category, **fields, "args": args} for category, fields, args in events]
    assert isinstance(metadata, dict)
    read_or_refuse(tmp_path / "junk", json.dumps({**metadata, "traceEvents": listed}).encode())
