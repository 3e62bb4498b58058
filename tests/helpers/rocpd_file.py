"""Small rocpd databases (rocprofv3's schema 3): tables with the writer's id, views over them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

GUID = "0197aaaa-0000-7000-8000-00000000000{}"
_TABLES = {
    "rocpd_metadata": "tag, value",
    "rocpd_string": "guid, string",
    "rocpd_info_process": "guid, nid, pid, command",
    "rocpd_info_thread": "guid, nid, pid, tid, name",
    "rocpd_info_agent": "guid, type, absolute_index, logical_index, type_index, name, product_name",
    "rocpd_info_kernel_symbol": "guid, kernel_name, display_name",
    "rocpd_event": "guid, category_id, stack_id, parent_stack_id, correlation_id",
    "rocpd_region": "guid, nid, pid, tid, start, end, name_id, event_id",
    "rocpd_kernel_dispatch": "guid, nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
    "region_name_id, event_id, extdata",
    "rocpd_memory_copy": "guid, nid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, stream_id, event_id",
}


@dataclass
class Writer:
    """One process's share of a database. Rows get ids from 1 in each table, as in every share."""

    path: Path
    number: int = 1
    pid: int = 100
    #: The agent's index, as rocprofv3 counts.
    device: int = 1
    #: (name, start, end, correlation) of each dispatch; a correlation of None has no event.
    kernels: list[tuple[str | None, int, int, int | None]] = field(default_factory=list)
    #: (category, name, start, end, correlation).
    regions: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    copies: list[tuple[str, int, int]] = field(default_factory=list)

    def write(self) -> Path:
        """Add the tables to the file."""
        guid = GUID.format(self.number)
        suffix = "_" + guid.replace("-", "_")
        connection = sqlite3.connect(self.path)
        for table, columns in _TABLES.items():
            quoted = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
            connection.execute(f'CREATE TABLE "{table}{suffix}" (id INTEGER PRIMARY KEY, {quoted})')

        def add(table: str, **values: object) -> int:
            if table != "rocpd_metadata":
                values["guid"] = guid
            names = ", ".join(f'"{name}"' for name in values)
            marks = ", ".join("?" for _ in values)
            sql = f'INSERT INTO "{table}{suffix}" ({names}) VALUES ({marks})'
            return connection.execute(sql, list(values.values())).lastrowid or 0

        add("rocpd_metadata", tag="schema_version", value="3")
        process = add("rocpd_info_process", nid=1, pid=self.pid, command="python")
        thread = add("rocpd_info_thread", nid=1, pid=process, tid=self.pid, name="main")
        cpu = add("rocpd_info_agent", type="CPU", absolute_index=0, name="EPYC", product_name="EPYC")
        gpu = add(
            "rocpd_info_agent",
            type="GPU",
            absolute_index=self.device,
            name="gfx942",
            product_name="AMD Instinct MI300X",
        )
        dispatch = add("rocpd_string", string="KERNEL_DISPATCH")
        common = {"nid": 1, "pid": process, "tid": thread}
        for number, (name, start, end, correlation) in enumerate(self.kernels, 1):
            shown = name.removesuffix(".kd") if name else None
            symbol = add("rocpd_info_kernel_symbol", kernel_name=name, display_name=shown) if name else 10**6
            event = add("rocpd_event", category_id=dispatch, stack_id=correlation) if correlation is not None else None
            where = {"agent_id": gpu, "queue_id": 3, "stream_id": 2, "region_name_id": None, "extdata": "{}"}
            times = {"start": start, "end": end, "dispatch_id": number, "event_id": event}
            add("rocpd_kernel_dispatch", **common, **where, **times, kernel_id=symbol)
        for category, name, start, end, correlation in self.regions:
            event = add("rocpd_event", category_id=add("rocpd_string", string=category), stack_id=correlation)
            text = add("rocpd_string", string=name)
            add("rocpd_region", **common, start=start, end=end, name_id=text, event_id=event)
        for name, start, end in self.copies:
            text = add("rocpd_string", string=name)
            times = {"start": start, "end": end, "stream_id": 2}
            add("rocpd_memory_copy", **common, **times, name_id=text, dst_agent_id=gpu, src_agent_id=cpu)
        if self.number == 1:
            # What rocprofv3's own tools read: it lacks every kernel without an event.
            connection.execute(
                f'CREATE VIEW "kernels" AS SELECT k.* FROM "rocpd_kernel_dispatch{suffix}" k '
                f'JOIN "rocpd_event{suffix}" e ON e.id = k.event_id'
            )
            connection.execute(f'CREATE VIEW "rocpd_kernel_dispatch" AS SELECT * FROM "rocpd_kernel_dispatch{suffix}"')
        connection.commit()
        connection.close()
        return self.path
