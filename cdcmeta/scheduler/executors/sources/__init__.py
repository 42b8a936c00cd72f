"""What a changefeed reads: prefixes of a store, changes databases, ranges of a CDC log."""
