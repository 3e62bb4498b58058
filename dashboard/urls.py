"""Links: what a page shows stands in its URL, so that a link shows the same to whoever opens it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs, quote, unquote, urlencode

from fusionscope.profiler.errors import FusionScopeError


class Query:
    """The part of a URL after `?`: names and their values."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self._values = values

    @staticmethod
    def parse(search: str | None) -> Query:
        """`?a=1&b=2&b=3` as a query."""
        return Query(parse_qs((search or "").removeprefix("?"), keep_blank_values=False))

    def replaced(self, values: Mapping[str, object]) -> Query:
        """The same with some values replaced; an empty one takes the name away."""
        kept = {name: old for name, old in self._values.items() if name not in values}
        return Query(kept | {name: [str(value)] for name, value in values.items() if value not in ("", None)})

    def text(self, name: str, default: str = "") -> str:
        """The last value of a name."""
        return self._values.get(name, [default])[-1]

    def texts(self, name: str) -> list[str]:
        """All values of a name, once each."""
        return list(dict.fromkeys(self._values.get(name, [])))

    def whole(self, name: str, default: int = 0) -> int:
        """A whole number, 0 or more. Raises FusionScopeError for anything else."""
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise FusionScopeError(
                f"{name} in the address is a whole number, not {text!r}: correct it or leave it out."
            )
        return int(text)

    def rank(self) -> int | None:
        """The rank, None where the URL names none: then the lowest that was traced. Raises FusionScopeError."""
        return self.whole("rank") if self.text("rank") else None

    def number(self, name: str, default: float) -> float:
        """A finite number above 0. Raises FusionScopeError for anything else."""
        text = self.text(name, repr(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise FusionScopeError(f"{name} in the address is a number above 0, not {text!r}: correct it.")
        return value

    def margin(self) -> float:
        """The margin, given in percent of the step, as a part. Raises FusionScopeError outside 0 to 100."""
        text = self.text("margin", "0.5")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 100:
            raise FusionScopeError(f"margin in the address is a percentage of the step such as 0.5, not {text!r}.")
        return value / 100


def _with(path: str, values: Iterable[tuple[str, object]]) -> str:
    kept = [(name, str(value)) for name, value in values if value not in ("", None)]
    return f"{path}?{urlencode(kept)}" if kept else path


def run(ref: str, **values: object) -> str:
    """The page of a run."""
    return _with(f"/run/{quote(ref, safe='')}", values.items())


def estimate(ref: str, **values: object) -> str:
    """The estimate page of a run."""
    return _with(f"/estimate/{quote(ref, safe='')}", values.items())


def compare(base: str = "", candidates: Iterable[str] = (), **values: object) -> str:
    """The comparison of a base with one or more candidates."""
    return _with("/compare", [("base", base), *(("candidate", c) for c in candidates), *values.items()])


def summary(base: str = "", candidate: str = "", **values: object) -> str:
    """The Markdown of two runs."""
    return _with("/summary", [("base", base), ("candidate", candidate), *values.items()])


def download(name: str, **values: object) -> str:
    """A file: `kernels.csv` with the run as `run=`, `summary.md` with `base=` and `candidate=`, and so on."""
    return _with(f"/download/{quote(name)}", values.items())


def compare_file(name: str, base: str, candidates: Iterable[str], **values: object) -> str:
    """A file about a comparison."""
    named = [("base", base), *(("candidate", c) for c in candidates), *values.items()]
    return _with(f"/download/{quote(name)}", named)


def parts(pathname: str | None) -> tuple[str, str]:
    """Page and run of a path: `/run/abc` is ("run", "abc"), `/` is ("", "")."""
    page, _, rest = (pathname or "/").strip("/").partition("/")
    return page, unquote(rest)
