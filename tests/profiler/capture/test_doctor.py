from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_programs import install

from fusionscope.profiler.capture import cupti, doctor, nsys, wrappers
from fusionscope.profiler.capture.doctor import LIMITED, MISSING, OK, examine


def by_name() -> dict[str, doctor.Check]:
    return {check.name: check for check in examine().checks}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with nothing: no torch, no programs."""
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "torch" else real(name, *more))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NSYS", str(tmp_path / "nsys"))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(cupti, "unavailable", lambda: "cupti-python does not load (x)")
    monkeypatch.setattr(doctor, "_gpu_files", lambda: False)
    return tmp_path


def test_a_bare_machine_says_what_to_install_and_can_still_wrap_an_engine(bare: Path) -> None:
    found = examine()
    assert (found.built_in, found.commands) == ([], ["torch"])
    checks = by_name()
    for name in ("torch", "gpu", "graphs", "nsys", "cupti", "rocprofv3", "compiler", "engines"):
        assert checks[name].state == MISSING and checks[name].fix, name
    assert "fusionscope[runtime]" in checks["torch"].fix
    assert checks["nsys"].found == f"$NSYS names {bare}/nsys, which cannot be run"


def test_the_programs_that_are_there_are_named_with_their_version(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in install(bare / "bin", bare / "state").items():
        monkeypatch.setenv(key, value)
    (bare / "bin" / "rocprofv3").write_text("#!/bin/sh\necho 'version: 1.1.0'\n")
    (bare / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 470.82.01\n")
    (bare / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bare / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    found = examine()
    assert found.commands == ["nsys", "rocprofv3", "torch"]
    checks = by_name()
    assert checks["nsys"].found == f"2026.2.1.100-0 at {bare}/bin/nsys"
    assert checks["rocprofv3"].found == f"1.1.0 at {bare}/bin/rocprofv3"
    assert (checks["driver"].state, checks["driver"].found) == (LIMITED, "NVIDIA 470.82.01")
    monkeypatch.setattr(nsys, "missing_libraries", lambda path: ["libdw.so.1"])
    limited = by_name()["nsys"]
    assert limited.state == LIMITED and "apt-get install libdw1" in limited.fix
    assert examine().commands == ["rocprofv3", "torch"]


def test_a_cpu_build_beside_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = SimpleNamespace(
        __version__="2.9",
        version=SimpleNamespace(hip=None, cuda=None),
        cuda=SimpleNamespace(is_available=lambda: False),
    )
    monkeypatch.setattr(doctor, "_torch_module", lambda: torch)
    monkeypatch.setattr(doctor, "_gpu_files", lambda: True)
    monkeypatch.setattr(cupti, "unavailable", lambda: "")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "13.0")
    checks = by_name()
    assert checks["torch"].state == LIMITED and "CPU build" in checks["torch"].fix
    assert checks["gpu"].state == LIMITED


@pytest.mark.parametrize(("cuda", "safe"), [("12.4", False), ("11.8", False), ("12.6", True), ("13.0", True)])
def test_B28_a_second_profile_before_cuda_12_6_needs_its_two_variables(
    monkeypatch: pytest.MonkeyPatch, cuda: str, safe: bool
) -> None:
    torch: Any = SimpleNamespace(
        __version__="2.9",
        version=SimpleNamespace(hip=None, cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: False),
    )
    monkeypatch.setattr(doctor, "_torch_module", lambda: torch)
    monkeypatch.setattr(cupti, "unavailable", lambda: "")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "13.0")
    check = by_name()["cupti"]
    assert check.state == (OK if safe else LIMITED)
    advised = {"DISABLE_CUPTI_LAZY_REINIT=1", "TEARDOWN_CUPTI=0"}
    assert {word.strip(".,:") for word in check.fix.split()} & advised == (set() if safe else advised)


def test_an_amd_machine_without_rights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch: Any = SimpleNamespace(
        __version__="2.9",
        version=SimpleNamespace(hip="7.0", cuda=None),
        cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: 8, get_device_name=lambda k: ""),
    )
    monkeypatch.setattr(doctor, "_torch_module", lambda: torch)
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: tmp_path)
    found = examine()
    assert found.built_in == ["rocprofv3", "torch"]
    assert {c.name: c.found for c in found.checks}["gpu"] == "8 x unnamed GPU"
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == "/dev/kfd" or real(self))
    monkeypatch.setattr(os, "access", lambda *given: False)
    assert "render,video" in by_name()["permissions"].fix


def test_a_library_that_breaks_is_a_check_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("driver mismatch\nmore")

    monkeypatch.setattr(doctor, "_torch_module", broken)
    checks = by_name()
    assert checks["gpu"].state == checks["torch"].state == MISSING
    assert checks["gpu"].found == "looking at it failed: driver mismatch"
    assert examine().built_in == []
