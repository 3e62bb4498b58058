"""Which group a rank of a capture on several GPUs gets."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm import process_group, symmetric
from fusionscope.fusion_runtime.errors import NoSymmetricMemory
from fusionscope.profiler.capture.forward import _group_for


class Shared:
    """Stands for a group whose GPUs reach each other."""


class Plain:
    """Stands for one over NCCL alone."""


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    monkeypatch.setattr(process_group, "ProcessGroup", Plain)
    monkeypatch.setattr(symmetric, "SymmetricGroup", Shared)


def refused():
    raise NoSymmetricMemory("The GPU of rank 0 cannot reach the memory of rank 1's.")


@pytest.mark.parametrize(
    ("paths", "kind"),
    [
        ({}, Plain),
        ({"mhc_post": "split"}, Plain),
        ({"mhc_post": "inductor"}, Plain),
        ({"mhc_post": "split", "ar_norm@3": "triton"}, Shared),
        ({"ar_norm": "flashinfer"}, Shared),
        ({"ar_norm": "auto"}, Shared),
    ],
)
def test_memory_is_shared_where_a_path_needs_it(paths, kind):
    assert type(_group_for(paths)) is kind


def test_a_path_that_was_asked_for_fails_with_the_reason_and_auto_goes_without(monkeypatch):
    monkeypatch.setattr(symmetric, "SymmetricGroup", refused)
    with pytest.raises(NoSymmetricMemory, match="cannot reach"):
        _group_for({"mhc_post": "triton"})
    assert type(_group_for({"mhc_post": "auto"})) is Plain
    assert type(_group_for({"mhc_post": "split"})) is Plain
