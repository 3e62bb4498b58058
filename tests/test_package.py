"""The house: packages, their data, which way imports point, and what is installed with what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("fusion_runtime", "profiler", "analysis", "dashboard", "cli")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
MODULES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
#: What a folder may import of the others: cli -> dashboard -> analysis -> profiler, profiler/capture -> fusion_runtime.
ARROWS = {
    "fusion_runtime": set(),
    "profiler": set(),
    "profiler/capture": {"fusion_runtime"},
    "analysis": {"profiler"},
    "dashboard": {"analysis", "profiler"},
    "cli": {"analysis", "dashboard", "profiler"},
}


def part_of(module: Path) -> str:
    """The entry of ARROWS that a module belongs to."""
    path = module.relative_to(ROOT).as_posix()
    return "profiler/capture" if path.startswith("profiler/capture/") else path.partition("/")[0]


def imports(module: Path, *, anywhere: bool = True) -> Iterator[str]:
    """Dotted names that a module imports; with anywhere=False only what loading it imports."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if anywhere else _at_load(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            base = node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _at_load(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes outside functions and outside `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _at_load(node)


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirement lines, normalised."""
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements)
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


def test_the_package_list_is_the_folders() -> None:
    there = {
        "fusionscope." + file.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for file in MODULES
        if file.name == "__init__.py"
    }
    assert sorted(PACKAGES) == sorted(there)
    folders = {f"fusionscope.{folder}": folder for folder in (p.removeprefix("fusionscope.") for p in PACKAGES)}
    assert PROJECT["tool"]["setuptools"]["package-dir"] == {k: v.replace(".", "/") for k, v in folders.items()}
    # A folder with modules and no __init__.py would be in no wheel.
    assert {file.parent for file in MODULES} == {file.parent for file in MODULES if file.name == "__init__.py"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_installed_package_says_that_it_is_typed(package: str) -> None:
    if "fusion_runtime" in package:
        pytest.importorskip("torch")
    assert (resources.files(package) / "py.typed").is_file()


def test_data_files_are_installed() -> None:
    for folder, pattern in (("analysis/rules", "*.toml"), ("profiler/examples", "*/*"), ("dashboard/assets", "*")):
        files = sorted((ROOT / folder).glob(pattern))
        package, _, rest = folder.replace("/", ".").rpartition(".")
        installed = resources.files(f"fusionscope.{package}") / rest
        for file in files:
            inside = file.relative_to(ROOT / folder)
            assert installed.joinpath(*inside.parts).is_file(), f"{file} is not installed"
    assert len(list((ROOT / "analysis/rules").glob("*.toml"))) >= 2


def test_the_licence_and_the_readme_are_there() -> None:
    assert "Apache License" in (ROOT / PROJECT["project"]["license-files"][0]).read_text(encoding="utf-8")
    assert (ROOT / PROJECT["project"]["readme"]).is_file()


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pyarrow', 'scipy', 'torch', 'triton', 'msgspec'}"
    code = (
        "import sys; from fusionscope.cli.main import main; code = main(['--help']); "
        f"print(code, sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stderr.strip() == "0 []"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.relative_to(ROOT).as_posix())
def test_modules_are_small_and_import_along_the_arrows(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 500
    part = part_of(module)
    allowed = ARROWS[part] | {part.partition("/")[0]}
    used = {name.split(".")[1] for name in imports(module) if name.startswith("fusionscope.") and name.count(".") > 0}
    assert used <= allowed, f"{part} may import {sorted(allowed)} only"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if part_of(m) != "fusion_runtime"], ids=lambda m: m.relative_to(ROOT).as_posix()
)
def test_the_base_install_needs_no_torch(module: Path) -> None:
    anywhere = part_of(module) != "profiler/capture"
    top = {name.partition(".")[0] for name in imports(module, anywhere=anywhere)}
    assert not top & {"torch", "triton", "cupti", "cuda", "pynvml", "flashinfer"}


def test_every_dependency_is_used_and_every_import_is_declared() -> None:
    listed = names(PROJECT["project"]["dependencies"])
    base = [m for m in MODULES if part_of(m) not in ("fusion_runtime", "profiler/capture")]
    used = {name.partition(".")[0] for m in base for name in imports(m)} - set(sys.stdlib_module_names)
    used = {"protobuf" if name == "google" else name for name in used}
    # Dask's scheduler client is a package of its own that `dask[distributed]` brings.
    cluster = names(PROJECT["project"]["optional-dependencies"]["cluster"]) | {"distributed"}
    assert listed == names(list(used)) - {"fusionscope"} - cluster


def test_constraints_pin_torch_first_and_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins[0].startswith("torch==")
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+( ; .+)?", pin) for pin in pins)
    extras = PROJECT["project"]["optional-dependencies"]
    needed = names([*PROJECT["project"]["dependencies"], *extras["runtime"], *extras["dev"], *extras["cluster"]])
    assert needed - {"fusionscope"} <= names(pins)


def test_the_installed_metadata_is_of_this_tree() -> None:
    assert metadata.version("fusionscope") == PROJECT["project"]["version"]


def test_scripts_and_test_helpers_have_names_of_their_own() -> None:
    """Both folders are looked through for modules: of two that share a name one would hide the other."""
    scripts, helpers = ({file.stem for file in (ROOT / part).glob("*.py")} for part in ("benchmarks", "tests/helpers"))
    assert scripts and helpers and not scripts & helpers
