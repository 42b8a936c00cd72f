"""A capture's side of a changefeed."""
