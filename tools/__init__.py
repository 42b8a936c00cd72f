"""Programs for the maintainers; not a part of the wheel."""
