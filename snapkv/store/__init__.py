"""The store: what services open, write to and ask."""
