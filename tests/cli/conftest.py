"""Runs commands as a user does: arguments in, exit code, stdout and stderr out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import literal_store as literal
import pytest

# Typer looks once, when it is imported, whether a hosted CI or the user asks for colours and how wide the terminal is.
for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERMINAL_WIDTH"):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "120"

from fusionscope.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What one command printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def fusionscope(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command with a store of its own."""
    monkeypatch.setenv("FUSIONSCOPE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("FUSIONSCOPE_RULES", raising=False)
    monkeypatch.delenv("FUSIONSCOPE_PATHS", raising=False)

    def command(*args: object) -> Answer:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return command


@pytest.fixture(scope="session")
def literal_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the runs of helpers/literal_store.py; tests only read it."""
    folder = tmp_path_factory.mktemp("literal") / "store"
    literal.fill(folder)
    return folder


@pytest.fixture
def run(fusionscope: Command, literal_store: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command on that store."""
    monkeypatch.setenv("FUSIONSCOPE_STORE", str(literal_store))
    return fusionscope


@pytest.fixture(scope="session")
def samples() -> Path:
    """The shared sample traces; a test that needs them is skipped where they are not."""
    folder = Path(__file__).parents[2].parent / "shared" / "samples"
    if not folder.is_dir():
        pytest.skip(f"the samples are not in {folder}")
    return folder
