"""Two real gloo ranks in two processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS

RANK = """
import sys
import torch
import torch.distributed as dist
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS

torch.set_num_threads(1)
rank, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
group = ProcessGroup()
assert (group.rank, group.size, group.kind) == (rank, 2, "gloo")
assert group.all_reduce(torch.full((2, 3), rank + 1.0)).tolist() == [[3.0] * 3] * 2
rounded = group.all_reduce(torch.full((1, 2), 1 + rank / 256, dtype=torch.bfloat16))
assert rounded.dtype == torch.bfloat16
gathered = group.all_gather_last(torch.tensor([[rank, rank], [9 + rank, 9]]))
assert gathered.tolist() == [[0, 0, 1, 1], [9, 9, 10, 9]]
model = DecodeModel(MODELS["tiny"], group, 4, 256, "cpu", make_context(group, "cpu", PathChoice()))
model.step()
torch.save({"ids": model.step(), "logits": model.logits()}, f"{out}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def test_two_gloo_ranks_compute_the_same_model_as_one(tmp_path: object) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), port, str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    group = SingleGroup()
    alone = DecodeModel(MODELS["tiny"], group, 4, 256, "cpu", make_context(group, "cpu", PathChoice()))
    alone.step()
    ids, logits = alone.step(), alone.logits()
    for rank in range(2):
        got = torch.load(f"{tmp_path}/{rank}.pt")
        assert torch.equal(got["ids"], ids)
        torch.testing.assert_close(got["logits"], logits, atol=2e-4, rtol=2e-4)
