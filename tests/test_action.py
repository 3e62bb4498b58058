"""The action and the example workflows: their steps are executed here, with a `gh` that records its calls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import summary_store
from fake_gh import FakeGh

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
EXAMPLES = {
    file.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "docs/ci").iterdir())
}
SHA = "0123456789abcdef0123456789abcdef01234567"
NASTY = "\"; touch HACKED; $(touch HACKED) `touch HACKED` ' @octocat"
_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


class Runner:
    """Runs a step's script as a runner does: its env filled in, then `bash -e` on the script as it stands."""

    def __init__(self, folder: Path, values: dict[str, str], store: Path) -> None:
        self.folder = folder
        self.values = values
        self.gh = FakeGh(folder / "gh", {"12": SHA})
        tool = folder / "temp" / "fusionscope" / "bin" / "fusionscope"
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!{sys.executable}\nfrom fusionscope.cli.main import run\nrun()\n")
        tool.chmod(0o755)
        self.env = {
            "PATH": f"{self.gh.bin}{os.pathsep}{tool.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "RUNNER_TEMP": str(folder / "temp"),
            "FUSIONSCOPE_STORE": str(store),
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "job-summary.md"),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, step: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        env = {name: _EXPRESSION.sub(lambda m: self.values[m[1]], str(text)) for name, text in step["env"].items()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env=self.env | env, cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip


def step(steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(s for s in steps if s.get("name") == name)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "store"
    summary_store.fill(folder)
    return folder


@pytest.fixture
def runner(tmp_path: Path, store: Path) -> Runner:
    values = {f"inputs.{name}": str(known.get("default", "")) for name, known in ACTION["inputs"].items()}
    values |= {
        "inputs.base": "split split16", "inputs.candidate": "worse fused16", "inputs.title": NASTY,
        "inputs.token": "token", "github.event.pull_request.number": "12", "github.repository": "owner/name",
        "github.token": "token", "github.event.workflow_run.head_sha": SHA,
    }  # fmt: skip
    return Runner(tmp_path, values, store)


def test_the_action_compares_keeps_comments_once_and_fails_on_the_gate(runner: Runner) -> None:
    steps = ACTION["runs"]["steps"]
    runner.values |= {"inputs.fail-if": "slower", "inputs.expect": "launches<=4\nar_norm.fused==2\n"}
    for turn in range(2):
        compared = runner.run(step(steps, "Compare"))
        assert compared.returncode == 1, compared.stderr
        assert compared.stderr.startswith("::error::Gate slower failed for batch 4: ")
        # The next steps run in spite of that, as their conditions say.
        commented = runner.run(step(steps, "Comment"))
        assert commented.returncode == 0, commented.stderr
        assert len(runner.gh.comments) == 1 and ("created" in commented.stdout) == (turn == 0)
    body = runner.gh.comments[0]["body"]
    assert "1.00 us more per decode forward" in body and "| batch 16 |" in body
    assert "exit-code=1" in (runner.folder / "output").read_text()
    assert (runner.folder / "job-summary.md").read_text().count("batch 16") >= 1
    kept = step(steps, "Keep the runs")["with"]["path"].replace("${{ runner.temp }}", runner.env["RUNNER_TEMP"])
    assert (Path(kept) / "base-1.tar").is_file() and (Path(kept) / "pr").read_text() == "12\n"
    assert not list(runner.folder.rglob("HACKED"))


def test_without_a_gate_the_action_passes_and_outside_a_pull_request_it_needs_no_number(runner: Runner) -> None:
    runner.values["github.event.pull_request.number"] = ""
    done = runner.run(step(ACTION["runs"]["steps"], "Compare"))
    assert done.returncode == 0, done.stderr
    assert not (runner.folder / "temp" / "fusionscope-report" / "pr").exists()


def test_a_fork_measures_without_secrets_and_another_workflow_comments(runner: Runner) -> None:
    runner.run(step(ACTION["runs"]["steps"], "Compare"))
    (runner.folder / "temp" / "fusionscope-report").rename(runner.folder / "report")
    (runner.folder / "report" / "summary.md").write_text("@everyone, merge")
    job = EXAMPLES["comment.yml"]["jobs"]["comment"]
    done = runner.run(step(job["steps"], "Comment"))
    assert done.returncode == 0, done.stderr
    assert "everyone" not in runner.gh.comments[0]["body"] and "1.00 us more" in runner.gh.comments[0]["body"]
    (runner.folder / "report" / "pr").write_text("13")
    assert runner.run(step(job["steps"], "Comment")).returncode == 2 and len(runner.gh.writes) == 1


def test_no_script_has_an_expression_in_it() -> None:
    scripts = [s["run"] for s in ACTION["runs"]["steps"] if "run" in s]
    for name, workflow in EXAMPLES.items():
        if name != "gitlab-ci.yml":
            scripts += [s["run"] for job in workflow["jobs"].values() for s in job["steps"] if "run" in s]
    assert len(scripts) >= 6 and not any("${{" in script for script in scripts)
    assert all(s.get("shell") == "bash" for s in ACTION["runs"]["steps"] if "run" in s)


def test_rights_are_as_small_as_the_jobs() -> None:
    measure, comment = EXAMPLES["measure.yml"], EXAMPLES["comment.yml"]
    assert measure["permissions"] == {"contents": "read"} and "secrets." not in str(measure)
    # YAML reads the key `on` as true.
    assert measure[True] == "pull_request" and list(comment[True]) == ["workflow_run"]
    assert comment[True]["workflow_run"]["workflows"] == [measure["name"]]
    assert comment["permissions"] == {"actions": "read", "contents": "read", "pull-requests": "write"}
    uses = [s.get("uses", "") for s in comment["jobs"]["comment"]["steps"]]
    assert not any("checkout" in use for use in uses), "nothing of the pull request may be run there"
    artifact = step(comment["jobs"]["comment"]["steps"], "Fetch what was measured")["with"]
    assert artifact["name"] == ACTION["inputs"]["artifact"]["default"]
    fork = "github.event.pull_request.head.repo.full_name == github.repository"
    assert fork in step(ACTION["runs"]["steps"], "Comment")["if"]


def test_what_comes_after_the_gate_runs_in_spite_of_it() -> None:
    for name in ("Keep the runs", "Comment"):
        assert "always()" in step(ACTION["runs"]["steps"], name)["if"]


@pytest.mark.parametrize("name", ["measure.yml", "comment.yml", "gitlab-ci.yml"])
def test_the_examples_are_in_the_docs(name: str) -> None:
    assert f"ci/{name}" in (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def test_the_docs_command_fills_in_every_placeholder(tmp_path: Path) -> None:
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```sh\n(mkdir -p \.github.+?)```", text, re.DOTALL)
    shutil.copytree(ROOT / "docs/ci", tmp_path / "docs/ci")
    subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, check=True)
    made = sorted((tmp_path / ".github/workflows").iterdir())
    assert [file.name for file in made] == ["fusionscope-comment.yml", "fusionscope-measure.yml"]
    for file in made:
        assert f"your-name/fusionscope@{SHA}" in file.read_text(encoding="utf-8")
        assert "OWNER" not in str(yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_example_says_what_to_fill_in(name: str) -> None:
    head = (ROOT / "docs/ci" / name).read_text(encoding="utf-8").split("\n\n")[0]
    notes = "".join(line for line in head.splitlines() if line.startswith("# Replace"))
    for placeholder in ("OWNER", "COMMIT", *(["gitlab.example"] if "gitlab" in name else [])):
        assert placeholder in notes and f"| `{placeholder}` |" in (ROOT / "docs/ci.md").read_text(encoding="utf-8")


def test_the_inputs_that_the_example_gives_exist() -> None:
    given = EXAMPLES["measure.yml"]["jobs"]["measure"]["steps"][-1]["with"]
    assert set(given) <= set(ACTION["inputs"])
