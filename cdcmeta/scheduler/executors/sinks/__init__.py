"""Where changefeeds go: another store, JSON lines, a function."""
