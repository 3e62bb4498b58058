"""`fusionscope export`: files are written whole, for every rank, and can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fused_mhc_post
import pandas as pd
import pytest

from fusionscope.profiler.store import Store


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "store"
    run, _ = fused_mhc_post.pair()
    Store(folder).save(run.info, run.trace)
    return folder


def test_every_format_of_every_rank(fusionscope: Any, four_ranks: Path, tmp_path: Path) -> None:
    ref = next(four_ranks.iterdir()).name
    answer = fusionscope(
        "export", ref, "--store", four_ranks, "--perfetto", tmp_path / "run.pftrace", "--chrome", tmp_path / "run.json",
        "--csv", tmp_path / "csv", "--parquet", tmp_path / "parquet", "--pack", tmp_path / "run.tar", "--json",
    )  # fmt: skip
    assert answer.code == 0
    written = [Path(file) for file in answer.json["written"]]
    assert len(written) == 3 + 4 + 4 and all(file.stat().st_size for file in written)
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString((tmp_path / "run.pftrace").read_bytes())
    pids = {p.track_descriptor.process.pid for p in trace.packet if p.track_descriptor.HasField("process")}
    assert pids == {1, 2, 3, 4}
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    launches = pd.read_parquet(tmp_path / "parquet" / "launches.parquet")
    assert launches.groupby("rank").size().to_dict() == dict.fromkeys(range(4), 3 * 1664)
    sites = pd.read_csv(tmp_path / "csv" / "sites.csv")
    assert (sites["subtype"] == "ffn_exit").sum() == 4 * 3 * 45
    assert fusionscope("show", tmp_path / "run.tar", "--json").json["ranks"] == 4


def test_one_rank_alone_and_wrong_use(fusionscope: Any, four_ranks: Path, tmp_path: Path) -> None:
    ref = next(four_ranks.iterdir()).name
    assert fusionscope("export", ref, "--store", four_ranks, "--rank", 2, "--parquet", tmp_path).code == 0
    assert set(pd.read_parquet(tmp_path / "kernels.parquet")["rank"]) == {2}
    answer = fusionscope("export", ref, "--store", four_ranks)
    assert answer.code == 2 and "Say what to write" in answer.err
    (tmp_path / "file").write_text("")
    answer = fusionscope("export", "example", "--csv", tmp_path / "file" / "folder")
    assert answer.code == 2 and "choose another place" in answer.err
