"""Time travel over keys that other programs write."""
