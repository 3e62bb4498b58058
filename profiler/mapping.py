"""One function over many files: in this process, over local processes, or over a Dask cluster.

The function is pure and its answers come back in the order of the files, whoever computes them and however often a
worker dies meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.progress import Progress
from fusionscope.profiler.remote import is_url

T = TypeVar("T")
#: A process takes about a second to start, as long as 250 MB take to read: smaller inputs stay here.
_WORTH_A_PROCESS = 250 << 20
#: How often a file is given to another worker when one dies over it.
_RETRIES = 3


def map_files(
    function: Callable[[str], T],
    files: Sequence[str],
    *,
    workers: int | None = None,
    scheduler: str = "",
    progress: Progress | None = None,
) -> list[T]:
    """`function` of every file, in the order of the files.

    `workers` is the number of local processes; None takes the machine's cores where the files are large enough to be
    worth it. `scheduler` is the address of a Dask scheduler, whose workers must see the same paths or URLs.
    The first error of any file ends the whole and is raised; on Ctrl-C the workers end too.
    Raises FusionScopeError where the cluster cannot be reached or a worker dies.
    """
    if scheduler:
        return _over_dask(function, files, scheduler, progress)
    count = _workers(files) if workers is None else min(workers, len(files))
    if count > 1:
        return _over_processes(function, files, count, progress)
    found = []
    for done, path in enumerate(files):
        _tell(progress, done, files, path)
        found.append(function(path))
    _tell(progress, len(files), files, "")
    return found


def _workers(files: Sequence[str]) -> int:
    size = 0
    for path in files:
        try:
            size += os.path.getsize(path)
        except OSError:
            # A URL or a missing file: whoever opens it will say so.
            continue
    return min(os.cpu_count() or 1, len(files), 1 + size // _WORTH_A_PROCESS)


def _tell(progress: Progress | None, done: int, files: Sequence[str], path: str) -> None:
    if progress:
        progress(done, len(files), path.rsplit("/", 1)[-1])


def _over_processes(
    function: Callable[[str], T], files: Sequence[str], count: int, progress: Progress | None
) -> list[T]:
    # spawn: a fork of a process whose libraries have threads can hang.
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures: dict[Future[T], str] = {pool.submit(function, path): path for path in files}
        _tell(progress, 0, files, files[0])
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            _tell(progress, done, files, futures[future])
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise FusionScopeError(
            "A process that read a file was killed, as happens when memory runs out: import with fewer processes "
            "(--workers 1)."
        ) from error
    finally:
        # Whatever ended the wait, an error or Ctrl-C: what has not begun does not begin.
        pool.shutdown(wait=True, cancel_futures=True)


def _over_dask(function: Callable[[str], T], files: Sequence[str], address: str, progress: Progress | None) -> list[T]:
    try:
        import distributed
    except ImportError as error:
        raise FusionScopeError("--scheduler needs Dask: pip install 'fusionscope[cluster]'.") from error
    # A cluster's workers start elsewhere: a relative path means nothing there.
    paths = [path if is_url(path) else str(Path(path).absolute()) for path in files]
    client: Any
    try:
        client = distributed.Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise FusionScopeError(
            f"No Dask scheduler answers at {address} ({error}): start one with `dask scheduler` and workers with "
            f"`dask worker {address}`."
        ) from error
    with client, client.as_current():
        # pure=False: the same path may hold another file than it did for an import before this one.
        futures = client.map(function, paths, pure=False, retries=_RETRIES)
        try:
            _tell(progress, 0, files, files[0])
            for done, future in enumerate(distributed.as_completed(futures), 1):
                _tell(progress, done, files, paths[futures.index(future)])
            found: list[T] = client.gather(futures)
            return found
        except (ImportError, RuntimeError) as error:
            # What a worker says that cannot load the function; errors of the files themselves are sentences of ours.
            raise FusionScopeError(
                f"A worker of {address} cannot run this version of FusionScope ({' '.join(str(error).split())[:200]}): "
                "install the same version where the workers run."
            ) from error
        except distributed.scheduler.KilledWorker as error:
            raise FusionScopeError(
                f"Several workers of {address} died over one file, as happens when memory runs out ({error}): give "
                "the workers more memory, or import that file here."
            ) from error
        finally:
            client.cancel(futures)
