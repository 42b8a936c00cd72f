"""Benchmarks: one question a file, the floor and the rivals in the same run.

Rounds are interleaved (each round runs every rival once), so that a machine whose speed drifts
slows all of them alike. Only ratios count; results are committed with the machine described,
losses included. `python -m benchmarks` runs all, `python -m benchmarks ring_lookup` one.
"""
