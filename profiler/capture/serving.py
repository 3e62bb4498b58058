"""Leads an engine's server through a profile: ready, load, start, stop."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fusionscope.profiler.capture.engines import Request, Server
from fusionscope.profiler.capture.plan import CaptureError

#: A large model loads for many minutes; one profile's files take minutes to write.
READY_S, DONE_S, POLL_S = 3600.0, 900.0, 0.2
#: How long a batch goes on after its first token before the profile starts, so that all of it decodes.
SETTLE_S = 1.0


def free_port() -> int:
    """A port that is free on the loopback address now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def lead(
    server: Server,
    port: int,
    alive: Callable[[], bool],
    say: Callable[[str], None],
    written: Callable[[], list[Path]] | None,
    settle_s: float = SETTLE_S,
) -> None:
    """Profile the server that listens on `port` of the loopback address.

    `alive` says whether it still runs, `written` which traces are there (None: the profiler around it writes them
    when it ends). Raises CaptureError where the server ends, or answers a request with an error.
    """
    say("waiting for the server")
    _wait(lambda: _ready(port, server.ready), alive, READY_S, "become ready")
    say("warming the server up")
    for failed in _finish(_send(port, server.load), alive):
        raise failed
    if server.start_first:
        say("starting the profile")
        _post(port, server.start)
    load = _send(port, server.load)
    if not server.start_first:
        _wait(lambda: all(thread.began.is_set() for thread in load), alive, READY_S, "answer the load")
        _pause(settle_s, alive)
        say("starting the profile")
        _post(port, server.start)
    say("profiling")
    for failed in _finish(load, alive):
        raise failed
    if server.stop is not None:
        _post(port, server.stop)
    if written is not None:
        say("waiting for the traces")
        _settled(written, alive)


def _settled(written: Callable[[], list[Path]], alive: Callable[[], bool]) -> None:
    """Until there are traces and none has grown for a while."""
    before: list[tuple[Path, int]] = []
    since = time.monotonic()

    def same() -> bool:
        nonlocal before, since
        now = [(path, path.stat().st_size) for path in written()]
        if now != before:
            before, since = now, time.monotonic()
        return bool(now) and time.monotonic() - since > 10 * POLL_S

    _wait(same, alive, DONE_S, "write its traces")


def _wait(done: Callable[[], bool], alive: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if not alive():
            raise CaptureError(f"The server ended before it could {what}.")
        if time.monotonic() > deadline:
            raise CaptureError(f"The server did not {what} within {seconds / 60:.0f} minutes.")
        time.sleep(POLL_S)


def _pause(seconds: float, alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    _wait(lambda: time.monotonic() >= deadline, alive, seconds + 60, "decode")


def _ready(port: int, path: str) -> bool:
    try:
        with _opener().open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _opener() -> urllib.request.OpenerDirector:
    # No proxy: the server is on this machine.
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _post(port: int, request: Request, timeout: float = DONE_S, began: threading.Event | None = None) -> None:
    data = json.dumps(request.body).encode()
    headers = {"Content-Type": "application/json"}
    made = urllib.request.Request(f"http://127.0.0.1:{port}{request.path}", data=data, headers=headers, method="POST")
    try:
        with _opener().open(made, timeout=timeout) as answer:
            # A streamed answer begins with the first token.
            answer.readline()
            if began is not None:
                began.set()
            answer.read()
    except urllib.error.HTTPError as error:
        said = error.read(300).decode(errors="replace").strip()
        raise CaptureError(
            f"The server refused POST {request.path} with {error.code}: {said or error.reason}."
        ) from None
    except OSError as error:
        raise CaptureError(f"The server did not answer POST {request.path} ({error}).") from error


class _Load(threading.Thread):
    """One request of the load, sent beside the others."""

    def __init__(self, port: int, request: Request) -> None:
        super().__init__(daemon=True)
        self.port, self.request = port, request
        self.error: CaptureError | None = None
        #: Set with the first line of the answer, or its failure.
        self.began = threading.Event()

    def run(self) -> None:
        try:
            _post(self.port, self.request, READY_S, self.began)
        except CaptureError as error:
            self.error = error
        finally:
            self.began.set()


def _send(port: int, request: Request) -> list[_Load]:
    threads = [_Load(port, request) for _ in range(request.times)]
    for thread in threads:
        thread.start()
    return threads


def _finish(threads: list[_Load], alive: Callable[[], bool]) -> list[CaptureError]:
    """The errors of the requests, once all are answered."""
    _wait(lambda: not any(thread.is_alive() for thread in threads), alive, READY_S, "answer the load")
    return [thread.error for thread in threads if thread.error is not None]
