"""One time line over many stores, observed prefixes and archives; it only reads.

A *fleet* is a federation of *members*. `at(time)` is one moment of all of them, `watch` brings
their changes in one order. Nothing is written, except by ticks.

* `description` reads who is in a fleet, `link` opens one member and keeps it open;
* `members` asks all members at once; `moment`, `difference`, `merged_logs`, `fleet_watch` answer;
* `tick_rounds` ticks all members at one timestamp, and finds such times; `archive_reach` lists how
  far archives reach.
"""
