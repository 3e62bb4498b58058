from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.errors import ConsumedTwice, Unconsumed
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, ForwardScope, Full, PartialSum


def partial(what: str = "layer0.out") -> PartialSum:
    return PartialSum(torch.ones(2, 3), SingleGroup(), what)


def deferred() -> DeferredFinalize:
    operands = FinalizeOperands(torch.ones(4, 3), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, 2), 1.0, None)
    return DeferredFinalize(operands, SingleGroup(), "layer3.experts")


def test_complete_reduces_over_its_own_group_once() -> None:
    class Doubling(SingleGroup):
        calls = 0

        def all_reduce(self, x: object) -> object:
            self.calls += 1
            return x + x  # type: ignore[operator]

    group = Doubling()
    full = PartialSum(torch.ones(2, 3), group).complete()
    assert isinstance(full, Full)
    assert torch.equal(full.tensor, torch.full((2, 3), 2.0))
    assert group.calls == 1


@pytest.mark.parametrize("first", ["take", "complete"])
@pytest.mark.parametrize("second", ["take", "complete"])
def test_second_consumption_names_the_sum(first: str, second: str) -> None:
    owed = partial()
    getattr(owed, first)()
    with pytest.raises(ConsumedTwice, match=r"layer0\.out was already consumed"):
        getattr(owed, second)()


def test_deferred_finalize_is_taken_once() -> None:
    owed = deferred()
    assert owed.take().scale == 1.0
    with pytest.raises(ConsumedTwice, match=r"layer3\.experts"):
        owed.take()


@pytest.mark.parametrize("make", [partial, deferred])
def test_scope_with_something_owed_raises(make: object) -> None:
    with pytest.raises(Unconsumed, match=r"1 reduction\(s\) still owed"), ForwardScope():
        make()  # type: ignore[operator]


def test_scope_in_which_all_is_consumed_passes() -> None:
    with ForwardScope() as scope:
        partial().complete()
        deferred().take()
    assert len(scope.owed) == 2


def test_inner_scope_owns_what_is_made_inside() -> None:
    with ForwardScope() as outer:
        with pytest.raises(Unconsumed), ForwardScope():
            partial()
        partial().complete()
    assert len(outer.owed) == 1


def test_an_error_inside_is_not_replaced() -> None:
    with pytest.raises(KeyError), ForwardScope():
        partial()
        raise KeyError("the real problem")


def test_without_a_scope_nothing_registers() -> None:
    owed = partial()
    with ForwardScope() as scope:
        pass
    assert scope.owed == [] and not owed.consumed
