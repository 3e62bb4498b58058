"""The shipped runs: they open on any machine and tell what was measured on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionscope.analysis import ruleset
from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import Fused, estimate
from fusionscope.analysis.ranks import ranks
from fusionscope.profiler.store import EXAMPLES, Store, example_runs


def opened(name: str, rung: int | None = None) -> Analysed:
    return analyse(Store(Path("/nowhere")).load(name), rung=rung)


def test_all_examples_ship() -> None:
    assert tuple(example_runs()) == EXAMPLES


@pytest.mark.parametrize("name,launches", [("example", 1629), ("example-fused", 1539)])
def test_provenance_and_rules_agree_site_for_site(name: str, launches: int) -> None:
    known, named = opened(name), opened(name, rung=4)
    assert known.forward.launches == launches and known.forward.replays == 12
    for kind, sites in (("mhc_post", 90), ("moe_finalize", 42), ("ar_norm", 0)):
        marked = [(s.columns, s.subtype) for s in known.attribution.sites[kind]]
        assert marked == [(s.columns, s.subtype) for s in named.attribution.sites[kind]]
        assert len(marked) == sites and known.attribution.rungs[kind] == 1


def test_the_schedule_over_the_graphs_own_edges_gives_the_span_back() -> None:
    schedule = opened("example").schedule()
    assert schedule.real_edges and schedule.self_check()


def test_the_prediction_holds_the_measured_saving() -> None:
    split, fused = opened("example"), opened("example-fused")
    found = compare(split, fused)
    assert found.fired is not None and (found.fired.sites, found.fired.of_sites) == (90, 90)
    assert found.measured_saving_ns == 151_440
    predicted = estimate(
        split.attribution, split.schedule(), "mhc_post", "", Fused(time_ns=3_776, source="candidate"), split.untraced
    )  # fmt: skip
    low, high = predicted.interval_ns
    assert low <= found.measured_saving_ns <= high and high - low < 36_000
    # One capture of each arm is no measurement: it says what several would, and is undecided itself.
    assert found.measured is not None and (found.measured.kind, found.measured.class_) == ("observed", "inconclusive")
    assert predicted.verdict.class_ == found.measured.would_be == "worth_merging"


def test_two_ranks_of_one_run_meet_in_their_all_reduces() -> None:
    run = Store(Path("/nowhere")).load("example-tp2")
    found = ranks(run, ruleset.load(()))
    assert [(row.rank, row.launches, row.replays) for row in found.rows] == [(0, 160, 12), (1, 160, 12)]
    # 11 all-reduces a forward. Transfer is the shortest over the ranks, so both have the same; the rest is wait.
    assert (found.occurrences, [row.transfer_ns for row in found.rows]) == (132, [866_745, 866_745])
    assert [row.wait_ns for row in found.rows] == [103_648, 1_339_166]
    for rank in (0, 1):
        known = analyse(run, rank=rank)
        assert len(known.attribution.sites["mhc_post"]) == 10 and known.attribution.rungs["mhc_post"] == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_private_ships(name: str) -> None:
    info = opened(name).info
    assert info.environment == {} and not set(info.machine) & {"system", "cpu", "hostname"}
    text = b"".join(path.read_bytes() for path in example_runs()[name].iterdir())
    assert not any(word in text for word in (b"/root", b"/home", b"/work", b"/tmp"))
