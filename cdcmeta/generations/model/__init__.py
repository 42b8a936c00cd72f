"""Generations as pure values and rules: no store, no clock."""
