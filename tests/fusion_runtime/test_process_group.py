"""Two real gloo ranks in two processes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS

RANK = """
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS

assert (group.rank, group.size, group.kind) == (rank, 2, "gloo")
assert group.all_reduce(torch.full((2, 3), rank + 1.0)).tolist() == [[3.0] * 3] * 2
rounded = group.all_reduce(torch.full((1, 2), 1 + rank / 256, dtype=torch.bfloat16))
assert rounded.dtype == torch.bfloat16
gathered = group.all_gather_last(torch.tensor([[rank, rank], [9 + rank, 9]]))
assert gathered.tolist() == [[0, 0, 1, 1], [9, 9, 10, 9]]
# Views: backends refuse them, and what a view is of must stay.
rows = torch.arange(6.0).view(2, 3) + rank
assert group.all_reduce(rows.T).tolist() == [[1, 7], [3, 9], [5, 11]] and rows[0, 0] == rank
assert group.all_gather_last(rows.T)[0].tolist() == [0, 3, 1, 4]
assert group.agree([True, rank == 0, False]) == [True, False, False] and group.agree([]) == []
assert group.same(7) and not group.same(rank) and not group.same(2**32 - 1 - rank)
model = DecodeModel(MODELS["tiny"], group, 4, 256, "cpu", make_context(group, "cpu", PathChoice()))
model.step()
torch.save({"ids": model.step(), "logits": model.logits()}, f"FOLDER/{rank}.pt")
"""


def test_two_gloo_ranks_compute_the_same_model_as_one(tmp_path: object) -> None:
    run_ranks(2, RANK.replace("FOLDER", str(tmp_path)))
    group = SingleGroup()
    alone = DecodeModel(MODELS["tiny"], group, 4, 256, "cpu", make_context(group, "cpu", PathChoice()))
    alone.step()
    ids, logits = alone.step(), alone.logits()
    for rank in range(2):
        got = torch.load(f"{tmp_path}/{rank}.pt")
        assert torch.equal(got["ids"], ids)
        torch.testing.assert_close(got["logits"], logits, atol=2e-4, rtol=2e-4)
