"""Policies: they decide which capture gets which table; pure functions of facts, one file each."""
