"""Below all rooms, without a store in it: arguments, text, files, waits, forks, loops, extras."""
