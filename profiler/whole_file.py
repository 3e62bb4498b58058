"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fusionscope.profiler.errors import FusionScopeError


@contextlib.contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Another path beside `file` to write to, which takes its name at the end of the block and goes if that fails.

    Missing folders are made. Raises FusionScopeError for an OSError inside or around the block.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(file)
    except OSError as error:
        why = error.strerror or error
        raise FusionScopeError(f"{file} cannot be written ({why}); choose another place.") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
