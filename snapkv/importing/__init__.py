"""Taking over keys that other programs wrote."""
