"""The layers of the decode forward: one file a kind, the same code for every device."""
