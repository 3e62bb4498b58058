"""Files are there whole, or as they were before."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.whole_file import whole_file


def test_a_file_appears_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.json"
    with whole_file(file) as partial:
        partial.write_text("1")
        assert not file.exists()
    assert file.read_text() == "1" and list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("any"), KeyboardInterrupt()])
def test_whatever_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")
    told = FusionScopeError if isinstance(error, OSError) else type(error)
    with pytest.raises(told) as found, whole_file(file) as partial:
        partial.write_text("half")
        raise error
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    if told is FusionScopeError:
        assert "cannot be written (No space left on device)" in str(found.value)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FusionScopeError, match="cannot be written"), whole_file(tmp_path / "file" / "x"):
        pytest.fail("nothing can be written there")
