from __future__ import annotations

from typing import Any


def test_doctor_as_json_and_for_people(fusionscope: Any) -> None:
    answer = fusionscope("doctor", "--json")
    assert answer.code == 0
    names = [check["name"] for check in answer.json["checks"]]
    assert names[:3] == ["torch", "gpu", "driver"] and {"nsys", "rocprofv3", "graphs", "perfetto"} <= set(names)
    assert {check["state"] for check in answer.json["checks"]} <= {"ok", "limited", "missing"}
    assert "torch" in answer.json["captures"]["commands"]
    shown = fusionscope("doctor")
    assert shown.code == 0 and "The built-in model can be captured with" in shown.out
