"""GLM-5.2: the modules of DeepSeek-V3 with other shapes and a larger epsilon, which its norms bring along."""

from __future__ import annotations

from fusionscope.fusion_runtime.families.deepseek_v3 import DeepseekV3


class Glm52(DeepseekV3):
    """Nothing differs for the stream: the sparse attention is behind `self_attn`."""
