"""Which processes are alive, and which of them leads."""
