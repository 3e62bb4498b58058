"""What model code imports: `boundary`, which marks the sites of a boundary. The rest is imported by module."""

from __future__ import annotations

from fusionscope.fusion_runtime.marks import boundary

__all__ = ["boundary"]
