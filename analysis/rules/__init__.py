"""Rules by name, as data: roles of kernels and kinds of boundary, ours and a user's, in TOML."""
