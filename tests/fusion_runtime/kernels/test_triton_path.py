"""The triton path's gates, and its norm of one rank in Triton's interpreter."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.boundaries import ar_norm
from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.loopback import Loopback
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.fusion_runtime.gates import Gate
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths.base import SiteShape
from fusionscope.fusion_runtime.paths.triton import TritonPath
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, MXFP4, NVFP4_SWIZZLED

SHAPE = SiteShape(2, 64, torch.float32, torch.device("cpu"))
GPU = replace(SHAPE, device=torch.device("cuda"), dtype=torch.bfloat16)


class Plain(Group):
    kind, rank, size = "gloo", 0, 4

    def all_reduce(self, x):
        raise AssertionError

    def all_gather_last(self, x):
        raise AssertionError


class Full(Loopback):
    def _lacks(self, wanted):
        return f"{wanted} bytes are too many"


LOOPBACK = Loopback(4, "cpu")
WIDE = replace(SHAPE, hidden=16392)

CASES = [
    ("mhc_post", SHAPE, LOOPBACK, None),
    ("ar_norm", SHAPE, LOOPBACK, None),
    ("ar_norm", replace(SHAPE, residual=False), LOOPBACK, None),
    ("ar_norm", replace(SHAPE, quant=FP8_TOKEN_GROUP_128), LOOPBACK, None),
    ("moe_finalize", replace(SHAPE, ends="norm", top_k=2), LOOPBACK, None),
    ("add_norm", SHAPE, LOOPBACK, Gate.NOT_COVERED),
    ("mhc_post", replace(SHAPE, tokens=0), LOOPBACK, Gate.NO_TOKENS),
    ("mhc_post", SHAPE, SingleGroup(), Gate.ONE_RANK),
    ("ar_norm", SHAPE, SingleGroup(), None),
    ("ar_norm", replace(SHAPE, residual=False), SingleGroup(), Gate.ONE_RANK),
    ("ar_norm", replace(SHAPE, tokens=4096), SingleGroup(), None),
    ("mhc_post", SHAPE, Plain(), Gate.PEER_MEMORY),
    ("mhc_post", GPU, LOOPBACK, Gate.GROUP_KIND),
    ("mhc_post", replace(GPU, dtype=torch.float32), LOOPBACK, Gate.DTYPE),
    ("mhc_post", replace(SHAPE, tokens=129), LOOPBACK, Gate.TOKENS_OVER_CAP),
    ("mhc_post", replace(SHAPE, hidden=60), LOOPBACK, Gate.ALIGNMENT),
    ("mhc_post", WIDE, LOOPBACK, None),
    ("ar_norm", WIDE, LOOPBACK, None),
    ("ar_norm", WIDE, SingleGroup(), Gate.HIDDEN_WIDTH),
    ("ar_norm", replace(SHAPE, quant=MXFP4), LOOPBACK, None),
    ("ar_norm", replace(SHAPE, quant=MXFP4, hidden=72), LOOPBACK, Gate.QUANT_UNSUPPORTED),
    ("ar_norm", replace(SHAPE, quant=NVFP4_SWIZZLED), LOOPBACK, Gate.QUANT_UNSUPPORTED),
    ("mhc_post", SHAPE, Full(4, "cpu"), Gate.WORKSPACE_TOO_SMALL),
]


@pytest.mark.parametrize(("boundary", "shape", "group", "gate"), CASES)
def test_gates(boundary, shape, group, gate):
    decline = TritonPath().declines(boundary, shape=shape, group=group)
    assert (decline and decline.gate) == gate


def test_a_channel_that_is_there_has_room():
    group = Full(4, "cpu")
    group._lacks = lambda wanted: None
    group.channel(2, 64, torch.float32)
    del group._lacks
    assert TritonPath().declines("mhc_post", shape=SHAPE, group=group) is None


def test_one_rank_adds_and_norms_in_one_launch():
    group = SingleGroup()
    ctx = DecodeContext(group, cuda_ops, PathChoice.parse("ar_norm=triton"))
    x, residual, norm = torch.randn(3, 72), torch.randn(3, 72), Norm(torch.randn(72), 1e-5)
    got = ar_norm.run(PartialSum(x, group), residual, norm, subtype="residual", layer=0, ctx=ctx)
    for mine, want in zip(got, ar_norm.reference([x], residual, norm), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)
    assert [(row.path, row.declined) for row in ctx.recorder.rows] == [("triton", "")]
