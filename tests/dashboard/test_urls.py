"""What stands in a URL comes back out of it."""

from __future__ import annotations

import pytest

from fusionscope.dashboard import urls
from fusionscope.profiler.errors import FusionScopeError


def test_a_comparison_of_several_candidates_survives_its_url() -> None:
    made = urls.compare("a b", ["c&d", "e"], margin=1)
    query = urls.Query.parse(made.partition("?")[2])
    assert made.startswith("/compare?")
    assert (query.text("base"), query.texts("candidate"), query.margin()) == ("a b", ["c&d", "e"], 0.01)


def test_a_run_id_is_one_part_of_the_path() -> None:
    assert urls.run("../x", rank=1) == "/run/..%2Fx?rank=1"
    assert urls.parts("/run/..%2Fx") == ("run", "../x")
    assert urls.parts("/") == urls.parts(None) == ("", "")
    assert urls.estimate("r", boundary="", margin=None) == "/estimate/r"


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "99999999999", "²"])
def test_a_rank_that_is_no_whole_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(FusionScopeError, match="rank in the address is a whole number"):
        urls.Query({"rank": [text]}).whole("rank")


@pytest.mark.parametrize("text", ["0", "-2", "nan", "inf", "fast"])
def test_a_speed_up_is_finite_and_above_nought(text: str) -> None:
    with pytest.raises(FusionScopeError, match="speedup in the address is a number above 0"):
        urls.Query({"speedup": [text]}).number("speedup", 2.0)


@pytest.mark.parametrize("text", ["100", "-1", "nan", "half"])
def test_a_margin_is_a_percentage(text: str) -> None:
    with pytest.raises(FusionScopeError, match="margin in the address is a percentage"):
        urls.Query({"margin": [text]}).margin()


def test_controls_replace_what_the_url_says() -> None:
    query = urls.Query.parse("?rank=1&speedup=2&k=x").replaced({"speedup": 3.5, "k": "", "margin": None})
    assert (query.whole("rank"), query.number("speedup", 1), query.text("k", "none")) == (1, 3.5, "none")
