"""The protocol between owners and captures."""
