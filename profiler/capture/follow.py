"""Runs somebody's command to its end, or ends it so that its profiler can still write what it has."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fusionscope.profiler.capture import launch
from fusionscope.profiler.capture.plan import CaptureError

#: How long a profiler may take to write its report once it is asked to stop, s.
WRITING_S = 300.0


class Followed:
    """A running command. Its output goes to a log; `last` is the last line of it."""

    def __init__(self, child: subprocess.Popen[str], token: str, log: Path, said: Callable[[str], None]) -> None:
        self.child, self.token, self.log = child, token, log
        self.last = ""
        self._said = said
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        with self.log.open("a", encoding="utf-8") as record, contextlib.suppress(ValueError):
            for line in self.child.stdout:
                record.write(line)
                record.flush()
                if line.strip():
                    self.last = line.strip()
                    self._said(self.last)

    def alive(self) -> bool:
        """Whether the command still runs."""
        return self.child.poll() is None

    def wait(self) -> int:
        """Wait for the command's end -> its exit code."""
        while self.alive():
            time.sleep(0.05)
        # Workers may hold the pipe open after their parent: what they still say is not waited for long.
        self._reader.join(timeout=2)
        return int(self.child.returncode)

    def stop(self, seconds: float = WRITING_S) -> None:
        """Ask the command to stop, as Ctrl-C does: profilers then write their report. Waits for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def following(
    command: Sequence[str], env: dict[str, str], log: Path, said: Callable[[str], None]
) -> Iterator[Followed]:
    """Start a command; when the block ends, however it ends, no process of it is left.

    On Ctrl-C (KeyboardInterrupt) the command is asked to stop first. Raises CaptureError where it cannot be started.
    """
    token = secrets.token_hex(16)
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **env, launch.TOKEN: token},
            start_new_session=True,
            preexec_fn=launch.terminate_with_parent,
        )
    except OSError as error:
        raise CaptureError(f"{command[0]} cannot be started ({error.strerror}): check the command.") from error
    found = Followed(child, token, log, said)
    try:
        yield found
    except KeyboardInterrupt:
        found.stop()
        raise
    finally:
        launch.end(child, token)
