"""One function over many files, whoever computes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import slow_files
from slow_files import killed

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.mapping import map_files


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for number in range(5):
        (tmp_path / f"rank{number}").write_bytes(b"x" * number)
    return [str(tmp_path / f"rank{number}") for number in range(5)]


def test_answers_come_in_the_order_of_the_files(files: list[str]) -> None:
    told: list[tuple[int, int, str]] = []
    assert map_files(os.path.getsize, files, progress=lambda *step: told.append(step)) == [0, 1, 2, 3, 4]
    assert told[0] == (0, 5, "rank0")
    assert told[-1] == (5, 5, "")


def test_processes_give_the_same(files: list[str]) -> None:
    told: list[int] = []
    found = map_files(os.path.getsize, files, workers=2, progress=lambda done, *_: told.append(done))
    assert found == [0, 1, 2, 3, 4]
    assert told == [0, 1, 2, 3, 4, 5]


def test_an_error_of_one_file_is_raised_as_it_is(files: list[str]) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        map_files(os.path.getsize, [*files, "/absent"], workers=2)


def test_a_process_that_is_killed_is_named(files: list[str]) -> None:
    with pytest.raises(FusionScopeError, match="--workers 1"):
        map_files(killed, files, workers=2)


def test_where_no_scheduler_answers(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")

    def absent(*_: object, **__: object) -> None:
        raise OSError("Timed out trying to connect to tcp://127.0.0.1:1 after 10 s")

    monkeypatch.setattr(distributed, "Client", absent)
    with pytest.raises(FusionScopeError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1 .*`dask scheduler`"):
        map_files(os.path.getsize, files, scheduler="tcp://127.0.0.1:1")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A Dask scheduler and two workers, each a process of its own; yields its address and the workers."""
    pytest.importorskip("distributed")
    described = tmp_path / "scheduler.json"
    started = [_dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(described))]
    try:
        deadline = time.monotonic() + 60
        while not described.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        address = json.loads(described.read_text())["address"]
        for _ in range(2):
            started.append(
                _dask("worker", address, "--no-nanny", "--nthreads", "1", "--local-directory", str(tmp_path))
            )
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


def _dask(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
    # The workers find the function where the tests' helpers are.
    environment = os.environ | {"PYTHONPATH": str(Path(slow_files.__file__).parent)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_dask_worker_that_dies_midway_loses_nothing(
    files: list[str], cluster: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, workers = cluster
    victim: list[int] = []

    def kill_one(done: int, *_: object) -> None:
        # Each running reading has left its process's number: kill the one at work on the last file that began.
        if done == 2 and not victim:
            begun = sorted(tmp_path.glob("*.begun"), key=lambda path: path.stat().st_mtime)
            victim.append(int(begun[-1].read_text()))
            os.kill(victim[0], signal.SIGKILL)

    found = map_files(slow_files.size, files, scheduler=address, progress=kill_one)
    assert found == [0, 1, 2, 3, 4]
    assert victim and victim[0] in {worker.pid for worker in workers}
    assert sum(worker.poll() is not None for worker in workers) == 1


def test_workers_that_lack_the_code_are_told_of(
    files: list[str],
    cluster: tuple[str, list[subprocess.Popen[bytes]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "only_here.py").write_text("def size(path):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    with pytest.raises(FusionScopeError, match="install the same version where the workers run"):
        map_files(only_here.size, files, scheduler=cluster[0])
