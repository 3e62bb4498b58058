"""Small RPD files (rocpd 2)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid, tid, start, "end", apiName_id, args_id);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId, queueId, sequenceId, completionSignal, start, "end",
    description_id, opType_id);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id, op_id);
CREATE TABLE rocpd_kernelapi (api_ptr_id, stream, kernelName_id);
"""


def rpd(path: Path, apis: list[tuple[str, int]], ops: list[tuple[str, str, int, int, int]]) -> Path:
    """`apis` are (name, pid), numbered from 1; `ops` are (name, type, start, end, number of its api; 0: none)."""
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)

    def text(value: str) -> int:
        return connection.execute("INSERT INTO rocpd_string (string) VALUES (?)", (value,)).lastrowid or 0

    for number, (name, pid) in enumerate(apis):
        row = (pid, pid, number, number + 1, text(name), text("prefill" if name == "UserMarker" else ""))
        connection.execute(
            'INSERT INTO rocpd_api (pid, tid, start, "end", apiName_id, args_id) VALUES (?,?,?,?,?,?)', row
        )
    for name, kind, start, end, api in ops:
        sql = 'INSERT INTO rocpd_op (gpuId, queueId, start, "end", description_id, opType_id) VALUES (3, 1, ?, ?, ?, ?)'
        op = connection.execute(sql, (start, end, text(name), text(kind))).lastrowid
        if api:
            connection.execute("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (?, ?)", (api, op))
    connection.commit()
    connection.close()
    return path
