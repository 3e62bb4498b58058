"""What a GitHub workflow is told, and the one comment of a pull request: through the `gh` command."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from fusionscope.profiler.errors import FusionScopeError

#: GitHub refuses a longer comment.
LONGEST = 65_536
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_MARKER = re.compile(r"[\w.-]+")
_COMMENTS = """
query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) {
    comments(first: 100, after: $after) {
      pageInfo { hasNextPage endCursor }
      nodes { databaseId body viewerDidAuthor }
    } } }
}
"""


def marked(text: str, marker: str) -> str:
    """A text behind the comment that finds it again. Raises FusionScopeError for a marker that could end it."""
    if not _MARKER.fullmatch(marker):
        raise FusionScopeError(f"--marker {marker!r} must be letters, digits, dots and dashes.")
    body = f"<!-- fusionscope:{marker} -->\n{text}"
    return body if len(body) < LONGEST else body[: LONGEST - 100].rsplit("\n", 1)[0] + "\n\n(cut: too long)\n"


def check_repository(repository: str) -> None:
    """Raises FusionScopeError for what is no OWNER/NAME."""
    if not _REPOSITORY.fullmatch(repository):
        raise FusionScopeError(
            f"--repo {repository!r} is no OWNER/NAME: give the repository on GitHub, or --gitlab in a job of GitLab."
        )


def post(repository: str, number: int, text: str, marker: str) -> str:
    """Write the comment of a pull request, or update the one that we wrote before; returns what was done.

    Raises FusionScopeError where `gh` fails.
    """
    check_repository(repository)
    body = json.dumps({"body": marked(text, marker)})
    known = _ours(repository, number, f"<!-- fusionscope:{marker} -->")
    if known is not None:
        _gh("--method", "PATCH", f"repos/{repository}/issues/comments/{known}", "--input", "-", given=body)
        return "updated"
    _gh("--method", "POST", f"repos/{repository}/issues/{number}/comments", "--input", "-", given=body)
    return "created"


def check_head(repository: str, number: int, sha: str) -> None:
    """Raises FusionScopeError unless the pull request's head is the commit that was measured.

    A number that came with somebody's files could be any pull request's.
    """
    check_repository(repository)
    if not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise FusionScopeError(f"--head-sha {sha!r} is no commit: it must have 40 hexadecimal digits.")
    head = _gh(f"repos/{repository}/pulls/{number}").get("head", {}).get("sha")
    if head != sha:
        raise FusionScopeError(
            f"Pull request {number} is at another commit than the one that was measured: nothing is said there."
        )


def _ours(repository: str, number: int, first: str) -> int | None:
    """The id of our own comment that begins with the marker; somebody else's that does is not ours to change."""
    owner, name = repository.split("/")
    after: str | None = None
    while True:
        fields = ["-f", f"query={_COMMENTS}", "-f", f"owner={owner}", "-f", f"name={name}", "-F", f"number={number}"]
        answer = _gh("graphql", *fields, *(["-f", f"after={after}"] if after else []))
        pull = ((answer.get("data") or {}).get("repository") or {}).get("pullRequest")
        if pull is None:
            raise FusionScopeError(f"{repository} has no pull request {number}: check --repo and --pr.")
        for node in pull["comments"]["nodes"]:
            if node["viewerDidAuthor"] and node["body"].startswith(first):
                return int(node["databaseId"])
        page = pull["comments"]["pageInfo"]
        if not page["hasNextPage"]:
            return None
        after = page["endCursor"]


def _gh(*args: str, given: str | None = None) -> Any:
    """What `gh api` answers. No shell sees an argument."""
    try:
        done = subprocess.run(["gh", "api", *args], input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FusionScopeError("The GitHub command line `gh` is not installed: see https://cli.github.com.") from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise FusionScopeError(f"gh api failed ({reason}): check $GH_TOKEN and the permission pull-requests: write.")
    return json.loads(done.stdout) if done.stdout.strip() else {}


def annotation(level: str, text: str) -> str:
    """A line that a workflow shows as `error` or `warning`; a text from a run can end no such line."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level}::{escaped}"


def append(variable: str, text: str) -> None:
    """Append to the file that a variable of the workflow names, where there is one."""
    if place := os.environ.get(variable):
        with open(Path(place), "a", encoding="utf-8") as file:
            file.write(text)
