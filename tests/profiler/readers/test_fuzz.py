"""Damaged inputs of every reader: what is read holds together, and what is refused is refused in one sentence.

benchmarks/fuzz_readers.py runs the same with many more inputs, and bounds the time and memory of each.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyarrow")

import mutations
import pyarrow as pa
import reader_seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from reader_seeds import READERS, Seed
from small_inputs import VLLM

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.packed import BadPack, unpacked
from fusionscope.profiler.readers import read_provenance, read_timings
from fusionscope.profiler.readers.serving_json import read_serving
from fusionscope.profiler.runinfo import BrokenRun

INPUTS = 300
#: A warning of a library tells of a value that it will refuse one day.
pytestmark = pytest.mark.filterwarnings("error")


def read_or_refuse(reader: str, seed: Seed, folder: Path) -> None:
    """Any exception but our own fails the test."""
    try:
        reader_seeds.read(reader, seed, folder)
    except FusionScopeError as error:
        assert len(str(error)) > 20 and "\n" not in str(error), str(error)


@pytest.mark.parametrize("reader", READERS)
def test_the_undamaged_inputs_are_read(reader: str, tmp_path: Path) -> None:
    for seed in reader_seeds.seeds(reader):
        reader_seeds.read(reader, seed, tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_damaged_inputs(reader: str, tmp_path: Path) -> None:
    """The same inputs every time: a failure names the number of the one that failed."""
    for number in range(INPUTS):
        try:
            read_or_refuse(reader, reader_seeds.damaged(reader, Random(f"{reader} {number}")), tmp_path)
        except Exception as error:
            pytest.fail(f"input {number} of {reader}: {error!r}")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("reader", ["kineto", "rocprofv3_json", "timings", "provenance", "serving", "answers"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25, derandomize=True)
@given(data=st.data())
def test_any_value_in_any_place_of_a_document(reader: str, tmp_path: Path, data: st.DataObject) -> None:
    """Structure, not bytes: what fails is shrunk to the smallest value in the place where it fails."""
    documents = [seed for seed in reader_seeds.seeds(reader) if seed.entry.endswith(".json")]
    documents = documents or reader_seeds.seeds(reader)
    seed = documents[data.draw(st.integers(0, len(documents) - 1))]
    whole = json.loads(seed.files[seed.entry].splitlines()[0])
    holder, key = None, None
    inside = whole
    while isinstance(inside, dict | list) and inside and (holder is None or data.draw(st.integers(0, 4))):
        keys = sorted(inside) if isinstance(inside, dict) else range(len(inside))
        holder, key = inside, data.draw(st.sampled_from(keys))
        inside = holder[key]
    assert holder is not None
    holder[key] = data.draw(values)
    changed = json.dumps(whole).encode()
    read_or_refuse(reader, Seed({seed.entry: changed}, seed.entry), tmp_path)


def test_half_a_letter_in_a_name_is_shown_as_one_that_is_unknown(tmp_path: Path) -> None:
    (seed,) = reader_seeds.seeds("rocprofv3_json")
    content = seed.files[seed.entry].replace(b'"norm"', rb'"norm\ud800 \ud83d\ude00"')
    assert content != seed.files[seed.entry]
    path = tmp_path / seed.entry
    path.write_bytes(content)
    found = READERS["rocprofv3_json"].read(path)
    assert set(found.kernels["name"].astype(str)) >= {"norm\ufffd \U0001f600"}  # type: ignore[attr-defined]


def test_a_whole_number_beyond_all_floats_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps(VLLM | {"output_throughput": 10**400}))
    (run,) = read_serving([path])
    assert run.throughput is None and run.tpot_ms == 12.5


def test_a_mark_that_is_none_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_text('{"fusionscope_marks": 1, "rank": 0}\n3.5\n')
    with pytest.raises(FusionScopeError, match="line 2 is no mark"):
        read_provenance(path)


@pytest.mark.parametrize(("at", "value"), [(10, 14), (30, 0xFF)])
def test_a_zip_that_is_packed_otherwise_or_broken_is_refused(tmp_path: Path, at: int, value: int) -> None:
    """Another method of packing than deflate, and bytes that deflate cannot read."""
    whole = bytearray(next(s for s in reader_seeds.seeds("packed_run") if s.entry == "run.zip").files["run.zip"])
    if at == 10:
        place = whole.index(b"PK\x01\x02") + at
        whole[place : place + 2] = value.to_bytes(2, "little")
    else:
        place = whole.index(b"kernels.parquet") + 15
        whole[place : place + at] = bytes([value]) * at
    path = tmp_path / "run.zip"
    path.write_bytes(whole)
    with pytest.raises(BadPack, match="is no packed run"):
        unpacked(str(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[role]]\nrole = 'a'\npattern = '[[:alpha:]]_kernel'\n", "no regular expression.*nested set"),
        (f"[[boundary]]\nname = {'9' * 5000}\n", "is not valid TOML"),
    ],
)
def test_rules_that_python_takes_otherwise_are_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(FusionScopeError, match=told):
        READERS["rules"].read(path)


@pytest.mark.parametrize(
    ("reader", "number"), [("rocprofv3_json", 1426), ("packed_run", 1764), ("timings", 8346), ("rules", 1247)]
)
def test_inputs_that_once_crashed(reader: str, number: int, tmp_path: Path) -> None:
    read_or_refuse(reader, reader_seeds.damaged(reader, Random(f"{reader} {number}")), tmp_path)


def test_a_message_without_a_number_for_its_key_names_nothing(tmp_path: Path) -> None:
    (seed,) = reader_seeds.seeds("rocprofv3_json")
    path = tmp_path / seed.entry
    path.write_bytes(seed.files[seed.entry].replace(b'"key": 1,', b'"key": {},'))
    assert list(READERS["rocprofv3_json"].read(path).ranges["name"]) == ["roctxThreadRangeA"]  # type: ignore[attr-defined]


def test_a_message_whose_number_is_beyond_all_floats_names_nothing(tmp_path: Path) -> None:
    (seed,) = reader_seeds.seeds("rocprofv3_json")
    path = tmp_path / seed.entry
    path.write_bytes(seed.files[seed.entry].replace(b'"key": 1,', b'"key": %d,' % 10**400))
    assert list(READERS["rocprofv3_json"].read(path).ranges["name"]) == ["roctxThreadRangeA"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_kernel_without_symbol_of_any_number_is_named(tmp_path: Path, number: int) -> None:
    (seed,) = reader_seeds.seeds("rocpd")
    path = tmp_path / seed.entry
    path.write_bytes(seed.files[seed.entry])
    with contextlib.closing(sqlite3.connect(path)) as database:
        (table,) = database.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch%'"
        ).fetchone()
        database.execute(f'UPDATE "{table}" SET kernel_id = ?', (number,))
        database.commit()
    read_or_refuse("rocpd", Seed({seed.entry: path.read_bytes()}, seed.entry), tmp_path)


def test_what_sqlite_says_of_a_schema_is_told_in_one_line(tmp_path: Path) -> None:
    (seed,) = reader_seeds.seeds("rpd")
    broken = seed.files[seed.entry].replace(b'"end",\n', b'"end#,\n')
    assert broken != seed.files[seed.entry]
    path = tmp_path / seed.entry
    path.write_bytes(broken)
    with pytest.raises(FusionScopeError, match=r"is a damaged SQLite file .*unrecognized token") as found:
        READERS["rpd"].read(path)
    assert "\n" not in str(found.value)


def test_a_text_of_many_digits_is_no_number_of_a_run(tmp_path: Path) -> None:
    (seed,) = reader_seeds.seeds("run_folder")
    for name, content in seed.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    path = tmp_path / "run" / "kernels.parquet"
    table = parquet.read_table(path)
    digits = pa.array(["9" * 30] * len(table))
    parquet.write_table(table.set_column(table.column_names.index("start_ns"), "start_ns", digits), path)
    with pytest.raises(BrokenRun, match=r"kernels\.parquet cannot be read"):
        READERS["run_folder"].read(tmp_path)


def test_damage_does_not_depend_on_what_was_damaged_before() -> None:
    before = copy.deepcopy([value for value in mutations._VALUES if isinstance(value, dict | list)])
    for number in range(1000):
        reader_seeds.damaged("provenance", Random(f"provenance {number}"))
    assert [value for value in mutations._VALUES if isinstance(value, dict | list)] == before


def test_a_column_whose_name_has_several_lines_is_told_in_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('rank,"two\nlines"\n0,1\n')
    with pytest.raises(FusionScopeError, match=r"found: rank, two lines\)"):
        read_timings(str(path))
