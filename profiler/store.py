"""Runs on disk: one folder a run, Parquet tables beside run.json.

A run is written under a temporary name in the store and renamed when it is complete, so a killed capture leaves
no half run. Reading runs no code: Parquet and JSON only.
"""

from __future__ import annotations

import builtins
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import platformdirs

from fusionscope.profiler import packed, run_folder, runinfo
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.remote import is_url
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.trace import Trace

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
TAG = "tag:"
_TAG = re.compile(r"\w[\w./-]*")
_TEMPORARY = ".writing-"
_STALE_S = 24 * 3600
#: Names of shipped runs, and of none of a user's.
EXAMPLES = ("example", "example-fused", "example-tp2")


class UnknownRun(FusionScopeError):
    """No run, or several runs, answer to what the user wrote."""


@dataclass(frozen=True)
class Run:
    """A stored run. `path` is its folder."""

    info: RunInfo
    trace: Trace
    path: Path


@dataclass(frozen=True)
class Listed:
    """One line of `fusionscope runs`: `error` is "" or the sentence that says why the run cannot be opened."""

    id: str
    path: Path
    info: RunInfo | None
    error: str = ""


def default_place() -> str:
    """Where runs are kept: $FUSIONSCOPE_STORE (a folder or a URL), else a folder in the user's data directory."""
    given = os.environ.get("FUSIONSCOPE_STORE")
    return given or str(Path(platformdirs.user_data_dir("fusionscope")) / "runs")


def example_runs() -> dict[str, Path]:
    """The runs that ship with the package, by the name that opens each; see EXAMPLES."""
    folder = Path(__file__).parent / "examples"
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/run.json"))}


def check_name(name: str) -> None:
    """Raises FusionScopeError for a name that `load` could never find again."""
    slashes = os.sep in name or (os.altsep is not None and os.altsep in name)
    taken = name in (".", "..", *EXAMPLES) or name.startswith((TAG, "-"))
    if slashes or taken or name != name.strip() or not name.isprintable():
        raise FusionScopeError(
            f"--name {name!r} cannot name a run: leave out slashes, outer spaces and control characters, do not "
            f"begin it with a dash or {TAG}, and do not call it {EXAMPLES[0]}."
        )


class Store:
    """The runs under one folder. Nothing is created before the first save."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(default_place() if root is None else root).expanduser()
        if self.root.is_file():
            raise FusionScopeError(
                f"The store {self.root} is a file: give a folder of runs, as in fusionscope runs --store ./runs."
            )

    @property
    def place(self) -> str:
        """What `--store` calls this store."""
        return str(self.root)

    def save(self, info: RunInfo, trace: Trace) -> Run:
        """Write a run and return it as stored, with its id, creation time and versions filled in.

        Raises FusionScopeError where the store cannot be written, or for a name that cannot be.
        """
        check_name(info.name)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._sweep()
            info = msgspec.structs.replace(
                info,
                id=_new_id(),
                created=info.created or runinfo.now(),
                schema_version=runinfo.SCHEMA_VERSION,
                tool_version=info.tool_version or runinfo.tool_version(),
            )
            temporary = self.root / f"{_TEMPORARY}{info.id}"
            temporary.mkdir()
            try:
                run_folder.write(temporary, info, trace)
                final = self.root / info.id
                os.rename(temporary, final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            run_folder.fsync(self.root)
        except OSError as error:
            raise FusionScopeError(
                f"The run cannot be written to {self.root} ({error.strerror or error}); "
                "choose another folder with --store."
            ) from error
        return Run(info, trace, final)

    def load(self, ref: str) -> Run:
        """The run that `ref` names: an id, a unique prefix of one, a name, "example", `tag:main` (the newest run with
        that tag), a path to a run folder, or a packed run (.tar, .zip), which may be at a URL.

        Raises UnknownRun for none or several, BrokenRun where the run cannot be read.
        """
        path = self.find(ref)
        info = runinfo.read(path)
        return Run(info, run_folder.read(path), path)

    def find(self, ref: str) -> Path:
        """The folder of a run. See `load`."""
        if not ref:
            raise UnknownRun("The run's id is empty; `fusionscope runs` lists the ids.")
        if ref.startswith(TAG):
            return self._tagged(ref.removeprefix(TAG))
        if packed.is_packed(ref) and (is_url(ref) or Path(ref).is_file()):
            return packed.unpacked(ref)
        if os.sep in ref or (os.altsep and os.altsep in ref) or ref in (".", ".."):
            return self._by_path(Path(ref))
        found = _matches(self.root, ref)
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            ids = ", ".join(path.name for path in found)
            raise UnknownRun(f"{ref} names {len(found)} runs ({ids}); give the id of one.")
        examples = example_runs()
        if ref in examples:
            return examples[ref]
        if Path(ref, "run.json").is_file():
            return Path(ref)
        if Path(ref).is_file():
            raise UnknownRun(_a_file(Path(ref)))
        raise UnknownRun(
            f"There is no run {ref} in {self.place}; `fusionscope runs --store {self.place}` lists those that are."
        )

    def list(self) -> builtins.list[Listed]:
        """Every run, oldest first, then the examples; runs that cannot be opened carry their error."""
        found = [_listed(path.name, path) for path in _folders(self.root)]
        return found + [_listed(name, path) for name, path in example_runs().items()]

    def tag(self, ref: str, tags: builtins.list[str], remove: bool = False) -> RunInfo:
        """Add tags to a run of this store, or remove them, and return what is known of it then.

        Raises FusionScopeError for a tag that could not be asked for, or a run that is not in this store.
        """
        for name in tags:
            if not _TAG.fullmatch(name):
                raise FusionScopeError(f"The tag {name!r} cannot be asked for: use letters, digits, and . _ / - in it.")
        path = self.find(ref)
        if ref in EXAMPLES:
            raise FusionScopeError(
                f"{ref} ships with the package and is not in the store {self.place}, so it takes no tag: tag "
                "a run of yours."
            )
        if path.parent != self.root:
            raise FusionScopeError(f"{ref} is not in the store {self.place}, so it takes no tag: import it first.")
        info = runinfo.read(path)
        kept = [name for name in info.tags if name not in tags]
        info = msgspec.structs.replace(info, tags=kept if remove else [*kept, *dict.fromkeys(tags)])
        partial = path / f".run.json-{os.getpid()}"
        try:
            partial.write_bytes(runinfo.encode(info))
            run_folder.fsync(partial)
            os.replace(partial, path / "run.json")
        except OSError as error:
            raise FusionScopeError(
                f"{path} cannot be written ({error.strerror or error}), so the run takes no tag: ask whose store it is."
            ) from error
        return info

    def _tagged(self, name: str) -> Path:
        """The newest run with a tag."""
        found = [item for item in Store.list(self) if item.info is not None and name in item.info.tags]
        if not found:
            raise UnknownRun(
                f"No run in {self.place} has the tag {name}; give it to one with: fusionscope tag RUN {name}"
            )
        return max(found, key=lambda item: (item.info.created if item.info else "", item.id)).path

    def _by_path(self, path: Path) -> Path:
        if not path.is_dir():
            if path.is_file():
                raise UnknownRun(_a_file(path))
            raise UnknownRun(f"There is no run folder {path}; `fusionscope runs` lists the ids of the store.")
        return path

    def _sweep(self) -> None:
        """Remove what killed writers left more than a day ago."""
        for path in self.root.glob(f"{_TEMPORARY}*"):
            try:
                stale = time.time() - path.stat().st_mtime > _STALE_S
            except OSError:
                continue
            if stale:
                shutil.rmtree(path, ignore_errors=True)


def _a_file(path: Path) -> str:
    return f"{path} is a file and no run: make one of it with `fusionscope import {shlex.quote(str(path))}`."


def _folders(root: Path) -> Iterator[Path]:
    # Another process may rename or remove folders while we look: what is gone is skipped.
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return
    for name in names:
        if RUN_ID.fullmatch(name) and (root / name).is_dir():
            yield root / name


def _matches(root: Path, ref: str) -> list[Path]:
    folders = list(_folders(root))
    if exact := [path for path in folders if path.name == ref]:
        return exact
    if named := [path for path in folders if _name(path) == ref]:
        return named
    return [path for path in folders if path.name.startswith(ref)]


def _new_id() -> str:
    # Milliseconds come before what is random: runs of one second stay in the order in which they were saved.
    now = datetime.now(UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03x}{secrets.randbelow(4096):03x}"


def _name(path: Path) -> str:
    try:
        return runinfo.read(path).name
    except BrokenRun:
        return ""


def _listed(name: str, path: Path) -> Listed:
    try:
        return Listed(name, path, runinfo.read(path))
    except BrokenRun as error:
        return Listed(name, path, None, str(error))
