"""A store of runs at an fsspec URL (s3://bucket/runs, gs://…), worked on through a copy on this machine.

A run's run.json is uploaded last, and only what has one is a run: a save that was cut off leaves none behind, and ids
are unique, so nothing is there twice. Tables never change; run.json does when a run is given a tag.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import platformdirs

from fusionscope.profiler.remote import errors_of, filesystem, is_url
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import RUN_ID, Listed, Run, Store, default_place
from fusionscope.profiler.trace import TABLES, Trace

_MARK = "run.json"
#: Beside a run on this machine: which state of its run.json there was fetched.
_VERSION = ".version"
_FILES = (*(f"{name}.parquet" for name in TABLES), "trace.json")


def open_store(place: str | Path | None = None) -> Store:
    """The store at a folder or URL; None is $FUSIONSCOPE_STORE, else the default folder.

    Raises FusionScopeError for a URL whose kind of file system is not installed.
    """
    chosen = default_place() if place is None else str(place)
    return RemoteStore(chosen) if is_url(chosen) else Store(chosen)


class RemoteStore(Store):
    """The runs under one URL. What was loaded once is kept in the user's cache directory."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._system, self._prefix = filesystem(self.url)
        digest = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        super().__init__(Path(platformdirs.user_cache_dir("fusionscope")) / "stores" / digest)

    @property
    def place(self) -> str:
        """The URL."""
        return self.url

    def save(self, info: RunInfo, trace: Trace) -> Run:
        """Write a run here and then there. See `Store.save`; raises FusionScopeError where the upload fails."""
        run = super().save(info, trace)
        try:
            with errors_of(self.url):
                for name in (*_FILES, _MARK):
                    self._system.put_file(str(run.path / name), f"{self._prefix}/{run.info.id}/{name}")
        except BaseException:
            # What is not there is not a run here either.
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        return run

    def tag(self, ref: str, tags: builtins.list[str], remove: bool = False) -> RunInfo:
        """Tag a run here and there. See `Store.tag`."""
        info = super().tag(ref, tags, remove)
        with errors_of(self.url):
            self._system.put_file(str(self.root / info.id / _MARK), f"{self._prefix}/{info.id}/{_MARK}")
        return info

    def find(self, ref: str) -> Path:
        """The folder of a run on this machine, fetched if need be. See `Store.find`."""
        self._refresh()
        path = super().find(ref)
        if path.parent == self.root:
            self._fetch(path.name, _FILES)
        return path

    def list(self) -> builtins.list[Listed]:
        """Every run there, oldest first. See `Store.list`."""
        self._refresh()
        return super().list()

    def _refresh(self) -> None:
        """Bring run.json of every run here that is not, or is another there; forget runs that were removed there."""
        with errors_of(self.url):
            self._system.invalidate_cache()
            found = self._system.glob(f"{self._prefix}/*/{_MARK}", detail=True)
        names = {path.split("/")[-2]: _version(info) for path, info in found.items()}
        there = {name: version for name, version in names.items() if RUN_ID.fullmatch(name)}
        for path in self.root.glob("*"):
            if RUN_ID.fullmatch(path.name) and path.name not in there:
                shutil.rmtree(path, ignore_errors=True)
        for name, version in sorted(there.items()):
            known = self.root / name / _VERSION
            if not known.exists() or known.read_text() != version:
                (self.root / name / _MARK).unlink(missing_ok=True)
                self._fetch(name, (_MARK,))
                known.write_text(version)

    def _fetch(self, run: str, names: tuple[str, ...]) -> None:
        folder = self.root / run
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).exists():
                continue
            partial = folder / f".{name}-{os.getpid()}"
            try:
                with errors_of(f"{self.url}/{run}/{name}"), contextlib.suppress(FileNotFoundError):
                    self._system.get_file(f"{self._prefix}/{run}/{name}", str(partial))
                    os.replace(partial, folder / name)
            finally:
                partial.unlink(missing_ok=True)


def _version(info: dict[str, object]) -> str:
    """What changes when a file does: each file system tells of it in its own words."""
    return " ".join(
        str(info[key]) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "size") if key in info
    )
