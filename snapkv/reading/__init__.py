"""Reading: moments, listings, histories, differences, changes, as values or tables."""
