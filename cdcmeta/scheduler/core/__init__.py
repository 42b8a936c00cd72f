"""Tables, their states, and what to do next: pure."""
