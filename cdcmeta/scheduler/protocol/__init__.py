"""What owners and captures send each other."""
