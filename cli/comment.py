"""`fusionscope comment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, margin_part
from fusionscope.cli.common import JsonOpt, RulesOpt
from fusionscope.cli.pairing import TitleOpt


def comment(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A summary as Markdown, of this job.")] = None,
    untrusted: Annotated[
        Path | None,
        typer.Option(
            "--untrusted",
            metavar="FOLDER",
            help="What `fusionscope ci --out` wrote in a job of somebody else's code: only its runs and number are "
            "read, as data, and the summary is made again.",
        ),
    ] = None,
    repo: Annotated[str, typer.Option("--repo", metavar="OWNER/NAME", help="The repository on GitHub.")] = "",
    pr: Annotated[str, typer.Option("--pr", metavar="N", help="The pull request; with --untrusted it is read.")] = "",
    head_sha: Annotated[
        str, typer.Option("--head-sha", metavar="SHA", help="The commit that was measured; needed with --untrusted.")
    ] = "",
    gitlab: Annotated[bool, typer.Option("--gitlab", help="Write to the merge request of this GitLab job.")] = False,
    marker: Annotated[
        str, typer.Option("--marker", help="Tells this comment from others of the same job.")
    ] = "summary",
    title: TitleOpt = "",
    margin: MarginOpt = "0.5%",
    rules: RulesOpt = None,
    json: JsonOpt = False,
) -> None:
    """Write a summary as the one comment of a pull request, or update it: through `gh`, or GitLab's API.

    Example: fusionscope comment report/summary.md --repo OWNER/NAME --pr 12
    """
    from fusionscope.cli import artifact, github, output
    from fusionscope.cli import gitlab as merge_request
    from fusionscope.cli.ci import number
    from fusionscope.profiler.errors import FusionScopeError

    if (file is None) == (untrusted is None):
        raise FusionScopeError("Give either FILE, which this job wrote, or --untrusted FOLDER.")
    if not gitlab:
        github.check_repository(repo)
    if untrusted is not None:
        which = artifact.pull_request(untrusted)
        github.check_head(repo, which, head_sha)
        text = artifact.summary(untrusted, title, margin_part(margin), rules)
    else:
        assert file is not None
        text = artifact.text(file)
        which = 0 if gitlab else number(pr)
    done = merge_request.post(text, marker) if gitlab else github.post(repo, which, text, marker)
    if json:
        output.write_json({"done": done, "repo": repo, "pr": which})
    else:
        output.line(f"Comment {done}.")
