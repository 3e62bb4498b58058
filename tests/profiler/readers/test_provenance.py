"""Node provenance files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_provenance
from fusionscope.profiler.trace import SITES

SAMPLES = Path(__file__).parents[3] / "../shared/samples"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="../shared/samples is not here")
RANGES = "node_index_ranges_half_open"


def write(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "n.nodes.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@needs_samples
@pytest.mark.parametrize(("kind", "nodes"), [("split", 2), ("fused", 1)])
def test_samples(kind: str, nodes: int) -> None:
    rows = read_provenance(SAMPLES / f"h200_ar_norm/{kind}.nodes.json")
    assert list(rows.groupby("site").size()) == [nodes] * 45
    assert set(rows["boundary"]) == {"ar_norm"} and set(rows["path"]) == {kind}
    assert set(rows["rank"]) == set(rows["graph"]) == set(rows["layer"]) == {-1}
    assert list(rows["node"][:nodes]) == [3, 4][:nodes]
    assert {c: str(rows[c].dtype) for c in SITES} == SITES


def test_a_list_with_everything(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            {
                "boundary": "mhc_post",
                "subtype": "attn_exit",
                "layer": [0, 1],
                "path": "split",
                RANGES: [[3, 5], [9, 10]],
            },
            {
                "boundary": "mhc_post",
                "subtype": "ffn_exit",
                "layer": 0,
                "path": "triton",
                RANGES: [[6, 7]],
                "declined": "no",
            },
            {"boundary": "moe_finalize", "graph": 4, "rank": 1, "layer": 0, RANGES: [[5, 7]]},
        ],
    )
    rows = read_provenance(path)
    assert [tuple(row) for row in rows[["boundary", "subtype", "site", "layer", "node"]].itertuples(index=False)] == [
        ("mhc_post", "attn_exit", 0, 0, 3),
        ("mhc_post", "attn_exit", 0, 0, 4),
        ("mhc_post", "attn_exit", 1, 1, 9),
        ("mhc_post", "ffn_exit", 2, 0, 6),
        ("moe_finalize", "", 0, 0, 5),
        ("moe_finalize", "", 0, 0, 6),
    ]
    assert list(rows["graph"]) == [-1, -1, -1, -1, 4, 4] and list(rows["rank"]) == [-1, -1, -1, -1, 1, 1]
    assert list(rows["declined"]) == ["", "", "", "no", "", ""]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "is no JSON"),
        ([], "holds no sites"),
        ([1], "entry 0 names no boundary"),
        ({RANGES: []}, "names no boundary"),
        ({"boundary": "x"}, f"has no list {RANGES}"),
        ({"boundary": "x", RANGES: [[3]]}, "no half-open range"),
        ({"boundary": "x", RANGES: [[5, 5]]}, "no half-open range"),
        ({"boundary": "x", RANGES: [[-1, 5]]}, "no half-open range"),
        ({"boundary": "x", RANGES: [[0, 2**31]]}, "no half-open range"),
        ([{"boundary": "x", RANGES: [[0, 10**6]]}] * 3, "names 3000000 nodes, more than all graphs of a run have"),
        ({"boundary": "x", RANGES: [[True, 5]]}, "no half-open range"),
        ({"boundary": "x", RANGES: [[1, 5]], "layer": [1, 2]}, "layer has 2 numbers for 1 ranges"),
        ({"boundary": "x", RANGES: [[1, 5]], "layer": "3"}, "layer must be a whole number"),
        ({"boundary": "x", RANGES: [[1, 5]], "subtype": 3}, "subtype must be a text"),
    ],
)
def test_malformed(tmp_path: Path, data: Any, says: str) -> None:
    with pytest.raises(FusionScopeError, match=says):
        read_provenance(write(tmp_path, data))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FusionScopeError, match="cannot be opened"):
        read_provenance(tmp_path / "none.json")
