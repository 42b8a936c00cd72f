"""Sources of changefeeds: prefixes of a store, changes databases, ranges of a CDC log."""
