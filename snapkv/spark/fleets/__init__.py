"""Fleets in Spark: many stores, observed prefixes and archives as one DataFrame or stream.

`options` says which options a fleet has, `description` reads who is in it. `pinned` makes one cut
of all members when a DataFrame is made; `planning` splits each member by the planner of one store,
and `tasks` reads the parts, with a column `member`. `offset` and `stream` follow a fleet. `source`
joins them for the format `snapkv`.
"""
