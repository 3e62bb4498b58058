"""A `gh` for tests: answers `gh api` from a file of comments, changes it as GitHub would, and records every call."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

#: The command, which runs with the test's Python and knows its folder.
SCRIPT = """#!{python}
import json, sys
from pathlib import Path
folder = Path({folder!r})
args = sys.argv[1:]
given = sys.stdin.read() if "--input" in args else None
with open(folder / "calls.jsonl", "a") as file:
    file.write(json.dumps({{"args": args, "given": given}}) + "\\n")
state = json.loads((folder / "state.json").read_text())
assert args[0] == "api"
if state.get("broken"):
    sys.exit("HTTP 403: Resource not accessible by integration")
if args[1] == "graphql":
    fields = dict(arg.split("=", 1) for arg in args[2:] if "=" in arg)
    start = int(fields.get("after", 0))
    page = state["comments"][start : start + state["page"]]
    more = start + state["page"] < len(state["comments"])
    nodes = [dict(databaseId=c["id"], body=c["body"], viewerDidAuthor=c["mine"]) for c in page]
    info = dict(hasNextPage=more, endCursor=str(start + state["page"]))
    pull = None
    if fields["number"] in state["pulls"]:
        pull = dict(comments=dict(nodes=nodes, pageInfo=info))
    print(json.dumps(dict(data=dict(repository=dict(pullRequest=pull)))))
elif "PATCH" in args:
    number = int(args[args.index("PATCH") + 1].rsplit("/", 1)[1])
    for comment in state["comments"]:
        if comment["id"] == number:
            comment["body"] = json.loads(given)["body"]
elif "POST" in args:
    state["comments"].append(dict(id=1000 + len(state["comments"]), mine=True, body=json.loads(given)["body"]))
else:
    number = args[1].rsplit("/", 1)[1]
    print(json.dumps(dict(head=dict(sha=state["pulls"].get(number, "")))))
(folder / "state.json").write_text(json.dumps(state))
"""


class FakeGh:
    """The command in a folder for the PATH, its comments, and what it was asked."""

    def __init__(self, folder: Path, pulls: dict[str, str]) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        command = self.bin / "gh"
        command.write_text(SCRIPT.format(python=sys.executable, folder=str(folder)))
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self.say(comments=[], page=2, pulls=pulls)

    def say(self, **state: Any) -> None:
        """Set parts of what it answers from: comments, page, pulls, broken."""
        file = self.folder / "state.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | state))

    @property
    def comments(self) -> list[dict[str, Any]]:
        """The comments of the pull request now."""
        found: list[dict[str, Any]] = json.loads((self.folder / "state.json").read_text())["comments"]
        return found

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every call."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line)["args"] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def writes(self) -> list[str]:
        """Method and address of every call that changes something."""
        return [" ".join(args[args.index("--method") + 1 :][:2]) for args in self.calls if "--method" in args]
