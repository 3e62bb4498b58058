"""How a model's own modules meet the residual stream: one short file a family.

Attribute names are those of the families' classes in transformers, which SGLang and vLLM share for the most part. A
projection at the end of a half-layer (`o_proj`, `down_proj`) must be row-parallel and must not reduce.
"""
