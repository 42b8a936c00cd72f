"""One time line over many stores, observed prefixes and archives; it only reads.

A *fleet* is a federation of *members*. `at(time)` is one moment of all of them, `watch` brings
their changes in one order. Nothing is written, except by ticks.

* `description` reads who is in a fleet, `connection` opens one member and keeps it open;
* `members` asks all members at once; `moment`, `difference`, `merged` and `watch` answer;
* `ticker` ticks all members at one timestamp, `tick_rounds` finds such times; `archived` lists how
  far archives reach.
"""
