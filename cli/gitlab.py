"""The one note of a GitLab merge request, through GitLab's REST API with the variables of its jobs."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from typing import Any

from fusionscope.cli.github import marked
from fusionscope.profiler.errors import FusionScopeError

TIMEOUT_S = 60


def post(text: str, marker: str) -> str:
    """Write the note of the job's merge request, or update ours; returns what was done.

    Uses CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID and the token in FUSIONSCOPE_GITLAB_TOKEN. Raises
    FusionScopeError where one is missing or GitLab refuses.
    """
    names = ("CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID", "FUSIONSCOPE_GITLAB_TOKEN")
    values = [os.environ.get(name, "") for name in names]
    if missing := [name for name, value in zip(names, values, strict=True) if not value]:
        raise FusionScopeError(f"--gitlab needs {', '.join(missing)}: run it in a job of a merge request.")
    api, project, number, token = values
    if not (re.fullmatch(r"\d+", project) and re.fullmatch(r"\d+", number)):
        raise FusionScopeError("CI_PROJECT_ID and CI_MERGE_REQUEST_IID must be numbers.")
    notes = f"{api}/projects/{project}/merge_requests/{number}/notes"
    body = {"body": marked(text, marker)}
    me = _call("GET", f"{api}/user", token)["id"]
    known = _ours(notes, token, f"<!-- fusionscope:{marker} -->", me)
    if known is not None:
        _call("PUT", f"{notes}/{known}", token, body)
        return "updated"
    _call("POST", notes, token, body)
    return "created"


def _ours(notes: str, token: str, first: str, me: int) -> int | None:
    page = 1
    while True:
        found = _call("GET", f"{notes}?per_page=100&page={page}", token)
        for note in found:
            if note["author"]["id"] == me and note["body"].startswith(first):
                return int(note["id"])
        if len(found) < 100:
            return None
        page += 1


def _call(method: str, url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"PRIVATE-TOKEN": token, "Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise FusionScopeError(f"GitLab refused {method} ({error}): check the token and its scope `api`.") from error
