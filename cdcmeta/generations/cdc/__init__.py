"""Rows under streams: a table with a log of its changes, and the consumers of that log."""
