"""Generations as values and rules, without a store; only `metadata` reads a clock and waits."""
