"""Sinks of changefeeds: another store, JSON lines, a function."""
