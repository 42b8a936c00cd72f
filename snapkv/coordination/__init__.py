"""Coordination of processes: sessions that show which are alive, elections of a leader."""
