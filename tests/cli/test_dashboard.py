"""`fusionscope dashboard`: where it listens, what it says, whom it answers."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fusionscope.dashboard import serve
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import EXAMPLES, Store


def test_it_prints_where_it_listens_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    code = "import sys; from fusionscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "dashboard", "--port", "0", "--store", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
                assert lines[-1], process.stderr.read()
            told = json.loads("".join(lines))
            assert told["runs"] == len(EXAMPLES) and told["store"] == str(tmp_path)
            answer = asked(told["url"], "/")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            # Leaving the block waits for a server that a failed test has not ended.
            process.kill()
    assert answer.status == 200


def asked(url: str, path: str, host: str = "") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(url.removeprefix("http://").strip("/"), timeout=20)
    connection.request("GET", path, headers={"Host": host} if host else {})
    return connection.getresponse()


def test_a_port_in_use_is_one_sentence(fusionscope: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = fusionscope("dashboard", "--port", port)
    assert answer.code == 2
    assert answer.err == (
        f"The dashboard cannot listen on 127.0.0.1:{port} (Address already in use): choose another with --port, or "
        "--port 0 for any free one.\n"
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8050", 200), ("localhost", 200), ("[::1]:8050", 200), ("evil.example", 403), ("evil.example:80", 403)],
)
def test_a_page_of_another_site_gets_nothing(tmp_path: Path, host: str, status: int) -> None:
    made = serve.server(Store(tmp_path), port=0)
    try:
        client = made.app.test_client()  # type: ignore[attr-defined]
        assert client.get("/", headers={"Host": host}).status_code == status
    finally:
        made.server_close()


def test_it_listens_on_this_machine_alone(tmp_path: Path) -> None:
    made = serve.server(Store(tmp_path), port=0)
    try:
        assert made.server_address[0] == "127.0.0.1"
        assert serve.url(made) == f"http://127.0.0.1:{made.port}/"
    finally:
        made.server_close()
    with pytest.raises(FusionScopeError, match="cannot listen on"):
        serve.server(Store(tmp_path), host="203.0.113.1", port=0)
