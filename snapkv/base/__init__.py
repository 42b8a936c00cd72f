"""Parts without a store, for all rooms: arguments, text, files, waits, forks, loops, extras."""
