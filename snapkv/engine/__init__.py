"""Engines: where the bytes live. `base` is the contract, the others keep it."""
