"""Facts 1.4, row by row: every state, every role, every input.

Written from the facts; where a row of ours differs from TiCDC's, the last column says how.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What follows when a capture says one of some things."""

    before: str
    by: str
    inputs: str
    after: str = "same"
    told: str = ""
    v3: str = ""
    """What TiCDC does instead."""


NOT_FREED = "v3 never frees it: B4"
UNDETERMINED = "v3 frees a place on Stopping: B2"
AGAIN = "v3 ignores it; a lost removal is sent again"
STOP_IGNORED = "v3 ignores it; here a stopping capture may still write"

ROWS = [
    # Absent: v3 makes a reporter of "absent" the secondary; ours waits for AddTable
    Row("Absent U", "u", "A Sd", "Absent", v3=NOT_FREED),
    Row("Absent U", "u", "Pi Pd R", told="remove u", v3=AGAIN),
    Row("Absent U", "u", "Sg"),
    # Prepare, nobody replicates
    Row("Prepare S", "s", "A", "Prepare S*", "prepare s*", "v3's retry is the same request"),
    Row("Prepare S", "s", "Pi"),
    Row("Prepare S", "s", "Pd", "Commit s:P", "commit s"),
    Row("Prepare S", "s", "R", "Replicating s:P", v3="v3 ignores it: B3"),
    Row("Prepare S", "s", "Sg", "Absent s:U", v3=UNDETERMINED),
    Row("Prepare S", "s", "Sd", "Absent"),
    # Prepare, the primary replicates: a move
    Row("Prepare P S", "p", "Pi Pd R"),
    Row("Prepare P S", "p", "Sg", "Prepare p:U S", v3=UNDETERMINED),
    Row("Prepare P S", "p", "Sd", "Prepare S"),
    Row("Prepare P S", "p", "A", "Prepare S", v3="v3 ignores it: B1"),
    Row("Prepare P S", "s", "A", "Prepare P S*", "prepare s*", "v3's retry is the same request"),
    Row("Prepare P S", "s", "Pi"),
    Row("Prepare P S", "s", "Pd", "Commit P S", "remove p"),
    Row("Prepare P S", "s", "R", "Replicating P s:U", "remove s", "v3 ignores a second writer"),
    Row("Prepare P S", "s", "Sg", "Replicating P s:U", v3=UNDETERMINED),
    Row("Prepare P S", "s", "Sd", "Replicating P"),
    # Prepare, somebody is stopping: v3 ignores whatever an undetermined capture says here
    Row("Prepare S U", "u", "A Sd", "Prepare S", v3=NOT_FREED),
    Row("Prepare S U", "u", "Pi Pd R", told="remove u", v3=AGAIN),
    Row("Prepare S U", "u", "Sg"),
    Row("Prepare S U", "s", "A", "Prepare S* U", "prepare s*", "v3's retry is the same request"),
    Row("Prepare S U", "s", "Pi"),
    Row("Prepare S U", "s", "Pd", "Commit S U"),
    Row("Prepare S U", "s", "R", "Replicating s:P U", v3="v3 ignores it: B3"),
    Row("Prepare S U", "s", "Sg", "Absent s:U U", v3=UNDETERMINED),
    Row("Prepare S U", "s", "Sd", "Absent U"),
    Row("Prepare P S U", "u", "A Sd", "Prepare P S", v3=NOT_FREED),
    Row("Prepare P S U", "u", "Pi Pd R", told="remove u", v3=AGAIN),
    Row("Prepare P S U", "u", "Sg"),
    Row("Prepare P S U", "p", "Pi Pd R"),
    Row("Prepare P S U", "p", "Sg", "Prepare p:U S U", v3=UNDETERMINED),
    Row("Prepare P S U", "p", "Sd", "Prepare S U"),
    Row("Prepare P S U", "p", "A", "Prepare S U", v3="v3 ignores it: B1"),
    Row("Prepare P S U", "s", "A", "Prepare P S* U", "prepare s*", "v3's retry is the same"),
    Row("Prepare P S U", "s", "Pi"),
    Row("Prepare P S U", "s", "Pd", "Commit P S U", "remove p"),
    Row("Prepare P S U", "s", "R", "Replicating P s:U U", "remove s", "v3 ignores it"),
    Row("Prepare P S U", "s", "Sg", "Replicating P s:U U", v3=UNDETERMINED),
    Row("Prepare P S U", "s", "Sd", "Replicating P U"),
    # Commit, the primary is to stop first
    Row("Commit P S", "s", "Pd", told="remove p"),
    Row("Commit P S", "s", "Sd A", "Commit P"),
    Row("Commit P S", "s", "R", "Commit P s:U", "remove s", "v3: multiplePrimaryError"),
    Row("Commit P S", "s", "Sg", "Commit P s:U", v3=STOP_IGNORED),
    Row("Commit P S", "s", "Pi"),
    Row("Commit P S", "p", "R", told="remove p"),
    Row("Commit P S", "p", "Sd A", "Commit s:P", "commit s"),
    Row("Commit P S", "p", "Sg", "Commit p:U S", v3="v3 keeps it as the primary, and waits too"),
    Row("Commit P S", "p", "Pi Pd"),
    # Commit, nobody replicates any more
    Row("Commit S", "s", "Pd", "Commit s:P", "commit s"),
    Row("Commit S", "s", "Sd", "Absent"),
    Row("Commit S", "s", "A", "Absent", v3="v3 asks the same capture again, here a policy decides"),
    Row("Commit S", "s", "R", "Replicating s:P", v3="v3: multiplePrimaryError, B3"),
    Row("Commit S", "s", "Sg", "Absent s:U", v3=STOP_IGNORED),
    Row("Commit S", "s", "Pi"),
    # Commit, the secondary was promoted
    Row("Commit P", "p", "Pd", told="commit p"),
    Row("Commit P", "p", "R", "Replicating P"),
    Row("Commit P", "p", "Sd", "Absent"),
    Row("Commit P", "p", "A", "Absent", v3="v3 asks the same capture again, here a policy decides"),
    Row("Commit P", "p", "Sg", "Absent p:U", v3=STOP_IGNORED),
    Row("Commit P", "p", "Pi"),
    # Commit, somebody is stopping
    Row("Commit S U", "s", "Pd"),
    Row("Commit S U", "s", "Sd", "Absent U"),
    Row("Commit S U", "s", "A", "Absent U", v3="v3 asks the same capture again"),
    Row("Commit S U", "s", "R", "Replicating s:P U", v3="v3: multiplePrimaryError, B3"),
    Row("Commit S U", "s", "Sg", "Absent s:U U", v3=STOP_IGNORED),
    Row("Commit S U", "s", "Pi"),
    Row("Commit S U", "u", "Sd A", "Commit s:P", "commit s", "v3 waits for the next Prepared"),
    Row("Commit S U", "u", "Sg"),
    Row("Commit S U", "u", "R", told="remove u", v3="v3: multiplePrimaryError"),
    Row("Commit S U", "u", "Pi Pd", told="remove u", v3=AGAIN),
    Row("Commit P U", "p", "Pd", told="commit p"),
    Row("Commit P U", "p", "R", "Replicating P U"),
    Row("Commit P U", "p", "Sd", "Absent U"),
    Row("Commit P U", "p", "A", "Absent U", v3="v3 asks the same capture again"),
    Row("Commit P U", "p", "Sg", "Absent p:U U", v3=STOP_IGNORED),
    Row("Commit P U", "p", "Pi"),
    Row("Commit P U", "u", "Sd A", "Commit P"),
    Row("Commit P U", "u", "Sg"),
    Row("Commit P U", "u", "R", told="remove u", v3="v3: multiplePrimaryError"),
    Row("Commit P U", "u", "Pi Pd", told="remove u", v3=AGAIN),
    Row("Commit P S U", "s", "Pd", told="remove p"),
    Row("Commit P S U", "s", "Sd A", "Commit P U"),
    Row("Commit P S U", "s", "R", "Commit P s:U U", "remove s", "v3: multiplePrimaryError"),
    Row("Commit P S U", "s", "Sg", "Commit P s:U U", v3=STOP_IGNORED),
    Row("Commit P S U", "s", "Pi"),
    Row("Commit P S U", "p", "R", told="remove p"),
    Row("Commit P S U", "p", "Sd A", "Commit S U", v3="v3 promotes, whoever else is stopping"),
    Row("Commit P S U", "p", "Sg", "Commit p:U S U", v3="v3 keeps it as the primary"),
    Row("Commit P S U", "p", "Pi Pd"),
    Row("Commit P S U", "u", "Sd A", "Commit P S"),
    Row("Commit P S U", "u", "Sg"),
    Row("Commit P S U", "u", "R", told="remove u", v3="v3: multiplePrimaryError"),
    Row("Commit P S U", "u", "Pi Pd", told="remove u", v3=AGAIN),
    # Replicating
    Row("Replicating P", "p", "R"),
    Row("Replicating P", "p", "Sd", "Absent"),
    Row("Replicating P", "p", "A", "Absent", v3="v3 ignores it: B1"),
    Row("Replicating P", "p", "Sg", "Absent p:U", v3=STOP_IGNORED),
    Row("Replicating P", "p", "Pi Pd"),
    Row("Replicating P U", "p", "R Pi Pd"),
    Row("Replicating P U", "p", "Sd", "Absent U"),
    Row("Replicating P U", "p", "A", "Absent U", v3="v3 ignores it: B1"),
    Row("Replicating P U", "p", "Sg", "Absent p:U U", v3=STOP_IGNORED),
    Row("Replicating P U", "u", "A Sd", "Replicating P", v3=NOT_FREED),
    Row("Replicating P U", "u", "Sg"),
    Row("Replicating P U", "u", "R", told="remove u", v3="v3: multiplePrimaryError"),
    Row("Replicating P U", "u", "Pi Pd", told="remove u", v3=AGAIN),
    # Removing: whatever the role
    *(
        row
        for by, role, left in (("p", "P", "S U"), ("s", "S", "P U"), ("u", "U", "P S"))
        for row in (
            Row("Removing P S U", by, "Pi Pd R", told=f"remove {by}"),
            Row("Removing P S U", by, "A Sd", f"Removing {left}"),
            Row("Removing P S U", by, "Sg", f"Removing {left} {by}:U"),
            Row(f"Removing {role}", by, "Pi Pd R", told=f"remove {by}"),
            Row(f"Removing {role}", by, "A Sd", "Removing"),
            Row(f"Removing {role}", by, "Sg", f"Removing {by}:U"),
        )
    ),
]
"""All but what strangers say: they have a test of their own."""

SETS = sorted({row.before for row in ROWS} | {"Absent", "Removing"})
