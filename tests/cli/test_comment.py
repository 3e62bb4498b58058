"""`fusionscope ci` and `fusionscope comment`: one comment, updated; what others measured is data."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import summary_store
from fake_gh import FakeGh

from fusionscope.cli import github
from fusionscope.profiler.errors import FusionScopeError

SHA = "0123456789abcdef0123456789abcdef01234567"
MARK = "<!-- fusionscope:summary -->\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "store"
    summary_store.fill(folder)
    return folder


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGh:
    fake = FakeGh(tmp_path / "gh", {"12": SHA})
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    return fake


@pytest.fixture
def report(fusionscope: Any, store: Path, tmp_path: Path) -> Path:
    """What a job of the pull request leaves."""
    out = tmp_path / "report"
    assert fusionscope("ci", "split", "fused", "--out", out, "--store", store, "--pr", "12").code == 0
    return out


TO = ("--repo", "owner/name", "--pr", "12")


def test_a_comment_is_written_once_and_then_updated(fusionscope: Any, gh: FakeGh, tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    file.write_text("first $(id) `x`\n")
    assert fusionscope("comment", file, *TO).out == "Comment created.\n"
    file.write_text("second\n")
    assert fusionscope("comment", file, *TO, "--json").json == {"done": "updated", "repo": "owner/name", "pr": 12}
    assert [c["body"] for c in gh.comments] == [f"{MARK}second\n"]
    assert gh.writes == ["POST repos/owner/name/issues/12/comments", "PATCH repos/owner/name/issues/comments/1000"]
    assert fusionscope("comment", file, *TO, "--marker", "batch16").out == "Comment created.\n"
    assert len(gh.comments) == 2


def test_only_our_own_comment_is_updated_wherever_it_stands(fusionscope: Any, gh: FakeGh, tmp_path: Path) -> None:
    gh.say(
        comments=[
            {"id": 1, "mine": False, "body": f"{MARK}somebody else's"},
            {"id": 2, "mine": True, "body": "another bot's text"},
            {"id": 3, "mine": True, "body": f"quoted {MARK}"},
            {"id": 4, "mine": True, "body": f"{MARK}old"},
        ]
    )
    (tmp_path / "s.md").write_text("new")
    assert fusionscope("comment", tmp_path / "s.md", *TO).out == "Comment updated.\n"
    assert [c["body"].removeprefix(MARK) for c in gh.comments] == [
        "somebody else's", "another bot's text", f"quoted {MARK}", "new",
    ]  # fmt: skip
    assert gh.writes == ["PATCH repos/owner/name/issues/comments/4"]


def test_a_longer_text_than_github_takes_is_cut(fusionscope: Any, gh: FakeGh, tmp_path: Path) -> None:
    (tmp_path / "s.md").write_text("line\n" * 20_000)
    assert fusionscope("comment", tmp_path / "s.md", *TO).code == 0
    assert len(gh.comments[0]["body"]) < github.LONGEST and gh.comments[0]["body"].endswith("(cut: too long)\n")


def test_ci_leaves_summary_runs_and_number_and_tells_the_job(
    fusionscope: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    out = tmp_path / "report"
    args = ("ci", "--base", "split", "split16", "--candidate", "worse", "fused16", "--out", out, "--store", store)
    answer = fusionscope(*args, "--pr", "7", "--fail-if", "slower", "--expect", "launches<=4\nar_norm.fused==3")
    assert answer.code == 1 and answer.out.endswith(f", slower\nWritten to {out}\n")
    lines = answer.err.splitlines()
    assert lines[0].startswith("::error::Gate slower failed for batch 4: measured: Slower, above noise: ")
    assert lines[1:] == ["::error::Expected ar_norm.fused==3 of rank 0, found 2."] * 2
    assert sorted(p.name for p in out.iterdir()) == [
        "base-0.tar", "base-1.tar", "candidate-0.tar", "candidate-1.tar", "pr", "summary.json", "summary.md",
    ]  # fmt: skip
    assert (out / "pr").read_text() == "7\n"
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == (out / "summary.md").read_text()
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "verdict=slower\nexit-code=1\n"
    document = json.loads((out / "summary.json").read_text())
    assert document["gates"]["failed"] == ["slower"] and [e["holds"] for e in document["expectations"]] == [
        True, False, True, False,
    ]  # fmt: skip
    assert fusionscope(*args, "--pr", "7; id").code == 2
    assert fusionscope("ci", "split", "fused", "--out", out, "--store", store).code == 0
    assert sorted(p.name for p in out.iterdir()) == ["base-0.tar", "candidate-0.tar", "summary.json", "summary.md"]


def test_an_annotation_cannot_be_ended_by_a_name() -> None:
    assert github.annotation("error", "50 %\n::set-env name=x::y\r") == "::error::50 %25%0A::set-env name=x::y%0D"


def test_the_summary_of_somebody_elses_job_is_made_again(fusionscope: Any, gh: FakeGh, report: Path) -> None:
    (report / "summary.md").write_text("@everyone **merge this** <script>")
    (report / "summary.json").write_text("{}")
    answer = fusionscope("comment", "--untrusted", report, "--repo", "owner/name", "--head-sha", SHA)
    assert (answer.code, answer.out) == (0, "Comment created.\n")
    body = gh.comments[0]["body"]
    assert body.startswith(f"{MARK}### `ar_norm` fused at 2 sites: ") and "everyone" not in body
    assert gh.calls[0] == ["api", "repos/owner/name/pulls/12"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "pr").write_text("12; id"), "must be digits alone"),
        (lambda folder: (folder / "pr").write_text("12\n13"), "must be digits alone"),
        (lambda folder: (folder / "pr").write_text("../12"), "must be digits alone"),
        (lambda folder: (folder / "pr").write_text("13"), "at another commit"),
        (lambda folder: (folder / "pr").unlink(), "is no plain file"),
        (lambda folder: _link(folder / "pr", "/etc/hostname"), "is no plain file"),
        (lambda folder: _link(folder / "base-0.tar", "/etc/hostname"), "is no plain file"),
        (lambda folder: (folder / "candidate-0.tar").unlink(), "is no plain file"),
        (lambda folder: (folder / "base-0.tar").write_text("no archive"), "is no packed run"),
        (lambda folder: (folder / "base-0.tar").unlink(), "holds no base-0.tar"),
    ],
)
def test_files_of_somebody_elses_job_are_distrusted(
    fusionscope: Any, gh: FakeGh, report: Path, damage: Any, said: str
) -> None:
    damage(report)
    answer = fusionscope("comment", "--untrusted", report, "--repo", "owner/name", "--head-sha", SHA)
    assert answer.code == 2 and said in answer.err
    assert gh.writes == []


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize(
    "args",
    [
        ["--repo", "owner/name", "--pr", "12"],
        ["x.md", "--untrusted", "y", "--repo", "owner/name"],
        ["x.md", "--repo", "owner/name/../other", "--pr", "12"],
        ["x.md", "--repo", "owner/name", "--pr", "0"],
        ["x.md", "--repo", "owner/name", "--pr", "12", "--marker", "-->"],
        ["none.md", "--repo", "owner/name", "--pr", "12"],
        ["--untrusted", ".", "--repo", "owner/name", "--head-sha", "main"],
        ["x.md", "--gitlab"],
    ],
)
def test_wrong_use_writes_nothing(
    fusionscope: Any, gh: FakeGh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.md").write_text("x")
    (tmp_path / "pr").write_text("12")
    assert fusionscope("comment", *args).code == 2
    assert gh.writes == []


def test_a_refusal_of_github_is_one_sentence(fusionscope: Any, gh: FakeGh, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("x")
    gh.say(broken=True)
    answer = fusionscope("comment", tmp_path / "x.md", *TO)
    assert answer.code == 2 and "HTTP 403" in answer.err and "pull-requests: write" in answer.err
    gh.say(broken=False, pulls={})
    assert "has no pull request 12" in fusionscope("comment", tmp_path / "x.md", *TO).err


def test_without_gh_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FusionScopeError, match=r"cli\.github\.com"):
        github.post("owner/name", 1, "x", "summary")


@pytest.fixture
def gitlab(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, str]]]:
    """GitLab's API: the notes as it keeps them; the other side of every call."""
    calls: list[tuple[str, str, str]] = []
    notes: list[dict[str, Any]] = [
        {"id": k, "author": {"id": 1 if k else 2}, "body": "text" if k else f"{MARK}not ours"} for k in range(120)
    ]

    class Api(BaseHTTPRequestHandler):
        def answer(self) -> None:
            assert self.headers["PRIVATE-TOKEN"] == "secret"
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            calls.append((self.command, self.path, body))
            found: Any = {"id": 1}
            if self.command == "GET" and "notes" in self.path:
                page = int(self.path.rsplit("=", 1)[1])
                found = notes[100 * (page - 1) : 100 * page]
            elif self.command == "POST":
                notes.append({"id": 500, "author": {"id": 1}, **json.loads(body)})
            elif self.command == "PUT":
                notes[-1] |= json.loads(body)
            data = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in (
        ("CI_API_V4_URL", f"http://127.0.0.1:{server.server_port}"), ("CI_PROJECT_ID", "5"),
        ("CI_MERGE_REQUEST_IID", "7"), ("FUSIONSCOPE_GITLAB_TOKEN", "secret"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    yield calls
    server.shutdown()


def test_a_note_of_a_merge_request_is_written_once(
    fusionscope: Any, gitlab: list[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.md").write_text("text")
    assert fusionscope("comment", tmp_path / "s.md", "--gitlab").out == "Comment created.\n"
    assert fusionscope("comment", tmp_path / "s.md", "--gitlab").out == "Comment updated.\n"
    writes = [(method, path, json.loads(body)) for method, path, body in gitlab if method in ("POST", "PUT")]
    place = "/projects/5/merge_requests/7/notes"
    assert writes == [("POST", place, {"body": f"{MARK}text"}), ("PUT", f"{place}/500", {"body": f"{MARK}text"})]
    monkeypatch.setenv("CI_MERGE_REQUEST_IID", "7/../8")
    assert fusionscope("comment", tmp_path / "s.md", "--gitlab").code == 2
    monkeypatch.delenv("FUSIONSCOPE_GITLAB_TOKEN")
    assert "FUSIONSCOPE_GITLAB_TOKEN" in fusionscope("comment", tmp_path / "s.md", "--gitlab").err
