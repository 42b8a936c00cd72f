"""Executors that replicate tables of a store into a sink."""
