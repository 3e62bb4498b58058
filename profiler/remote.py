"""Files that are not on this machine: fsspec URLs such as s3://bucket/rank0.json.gz and gs://…"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fusionscope.profiler.errors import FusionScopeError

_URL = re.compile(r"[a-z][a-z0-9+.-]+://")


def is_url(path: str | Path) -> bool:
    """Whether a path names another place than this machine's file system."""
    return _URL.match(str(path)) is not None


def filesystem(url: str) -> tuple[Any, str]:
    """(fsspec file system, path in it) of a URL.

    Raises FusionScopeError where fsspec or the package for this kind of URL is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise FusionScopeError(f"{url} needs fsspec: pip install 'fusionscope[cluster]'.") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise FusionScopeError(f"{url} cannot be opened ({error}): pip install 'fusionscope[cluster]'.") from error
    return found


@contextlib.contextmanager
def local_copy(path: str | Path, beside: Callable[[str], list[list[str]]] | None = None) -> Iterator[Path]:
    """The file on this machine for as long as the context lasts: itself, or a copy of what a URL names.

    The copy keeps its name, which can tell of a rank. `beside` tells by that name which files of the same folder are
    read with it: of each list the first that is there is fetched too. Raises FusionScopeError where it cannot be
    fetched.
    """
    if not is_url(path):
        yield Path(path)
        return
    system, remote = filesystem(str(path))
    place, _, name = remote.rstrip("/").rpartition("/")
    with tempfile.TemporaryDirectory(prefix="fusionscope-") as folder:
        copy = Path(folder) / (name or "trace")
        with errors_of(str(path)):
            system.get_file(remote, str(copy))
            for names in beside(name) if beside else []:
                # Asked one by one: a listing of the folder may be long, and some servers give none.
                if other := next((one for one in names if system.isfile(f"{place}/{one}")), None):
                    system.get_file(f"{place}/{other}", str(Path(folder) / other))
        yield copy


@contextlib.contextmanager
def errors_of(url: str) -> Iterator[None]:
    """What a file system raises as one sentence. Each has errors of its own, and all of them mean that it failed."""
    try:
        yield
    except FusionScopeError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise FusionScopeError(
            f"{url} cannot be reached ({reason}): check the address and your credentials for it."
        ) from error
