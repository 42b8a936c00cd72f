"""The owner's side of a changefeed."""
