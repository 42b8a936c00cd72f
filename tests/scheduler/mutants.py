"""Versions of the scheduler that each lack one rule, and what shows that the rule is needed."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import NamedTuple

from cdcmeta.scheduler import agent
from cdcmeta.scheduler.core import replication_set
from cdcmeta.scheduler.protocol import messages

from . import small_moves, small_steps
from .bounds import EXPLORED, NOT_HEARD, Bound, bound


class Mutant(NamedTuple):
    """A rule less: a piece of source and what stands there instead."""

    name: str
    module: ModuleType
    old: str
    new: str
    bound: Bound

    def apply(self, monkeypatch) -> None:
        """Put the mutant in the place of its module."""
        source = inspect.getsource(self.module)
        assert source.count(self.old) == 1, f"{self.name}: {source.count(self.old)} places"
        changed = ModuleType(self.module.__name__)
        code = compile(source.replace(self.old, self.new), f"<{self.name}>", "exec")
        exec(code, changed.__dict__)
        for name, part in vars(self.module).items():
            if isinstance(part, type):  # the same classes: only functions differ
                setattr(changed, name, part)
        users = [
            (user, name)
            for user in (small_moves, small_steps)
            for name, found in vars(user).items()
            if found is self.module
        ]
        assert users, f"{self.name}: no part of the small world runs it"
        for user, name in users:
            monkeypatch.setattr(user, name, changed)


MUTANTS = [
    Mutant(
        "a commit without looking at the token",
        agent,
        "if request.is_prepare or request.token != held.token or held.is_committed:",
        "if request.is_prepare or held.is_committed:",
        bound(2, channel=2, moves=1, failures=1),
    ),
    Mutant(
        "a commit of what is not there begins it",
        agent,
        "    if isinstance(request, AddRequest) and request.is_prepare:",
        "    if isinstance(request, AddRequest) and not request.is_prepare:\n"
        "        begun = RunningTable(request.token, TableState.PREPARED, True, request.progress)\n"
        "        return Applied(begun, Action.REPLICATE)\n"
        "    if isinstance(request, AddRequest):",
        bound(2, channel=2, failures=1),
    ),
    Mutant(
        "absent is no promise",
        agent,
        "if kept is None or request.token > kept.token:",
        "if True:",
        EXPLORED["doubled requests, a table that fails"],
    ),
    Mutant(
        "what is forgotten is no promise",
        agent,
        "return EndedTable(max([earlier, *tokens]))",
        "return EndedTable(NO_TOKEN)",
        EXPLORED["doubled requests, a table that fails and is forgotten"],
    ),
    Mutant(
        "a place is free as soon as it stops",
        replication_set,
        "return Step(rset.with_undetermined(place))",
        "return _promoted(rset.without(place), is_settled)",
        bound(2, moves=1),
    ),
    Mutant(
        "promotion beside an undetermined capture",
        replication_set,
        "        or rset.is_undetermined\n",
        "",
        bound(2, moves=1),
    ),
    Mutant(
        "promotion beside a primary",
        replication_set,
        "if primary is not None:\n"
        "            return Step(committing, (_removal(rset, primary),))\n"
        "        return _promoted(committing, is_settled)",
        "return _promoted(committing.without(primary) if primary else committing, is_settled)",
        bound(2, moves=1),
    ),
    Mutant(
        "promotion before all have told",
        replication_set,
        "        or not is_settled\n",
        "",
        bound(2, *NOT_HEARD, channel=2, failovers=1, mutes=1),
    ),
    Mutant(
        "what is to be promoted is free at once when it is given up",
        replication_set,
        "    if rset.state is SetState.PREPARE:\n        # it was never",
        "    if True:\n        # it was never",
        EXPLORED["another owner, what was to begin given up"],
    ),
    Mutant(
        "reports of any token",
        replication_set,
        "if place is None or place.token != status.token:",
        "if place is None:",
        bound(2, moves=2),
    ),
    Mutant(
        "a preparation is repeated under the same token",
        replication_set,
        "again = rset.with_place(place._replace(token=fresh))\n"
        "            return Step(again, (_prepare(again, capture, fresh),))",
        "return Step(rset, (_prepare(rset, capture, place.token),))",
        bound(2, drops=1),
    ),
    Mutant(
        "what stops is no place of a new set",
        replication_set,
        "        places.append(place)\n",
        "        if status.state is not TableState.STOPPING: places.append(place)\n",
        bound(2, moves=1, failovers=1),
    ),
    Mutant(
        "what nobody knows of goes on",
        replication_set,
        "return Step(rset, (Send(capture, orphan),))",
        "return Step(rset)",
        EXPLORED["a late answer, a move"],
    ),
    Mutant(
        "a primary that has nothing is still the primary (B1)",
        replication_set,
        "        return _promoted(rset.without(place), is_settled)\n"
        "    if status.state is TableState.STOPPING",
        "        if rset.state is SetState.REPLICATING: return Step(rset)\n"
        "        return _promoted(rset.without(place), is_settled)\n"
        "    if status.state is TableState.STOPPING",
        bound(2, failures=1),
    ),
    Mutant(
        "a stopping primary in Prepare has stopped (B2)",
        replication_set,
        "        return Step(rset.with_undetermined(place))",
        "        if rset.state is SetState.PREPARE: return Step(rset.without(place))\n"
        "        return Step(rset.with_undetermined(place))",
        bound(3, moves=2, crashes=1),
    ),
    Mutant(
        "a commit of an earlier owner is no commit (B3)",
        replication_set,
        "return Step(rset.with_place(place.as_primary(), SetState.REPLICATING))",
        "return Step(rset)",
        bound(2, failovers=1),
    ),
    Mutant(
        "answers to earlier owners count",
        messages,
        "    if header.owner_revision != own.revision:\n"
        "        return MessageVerdict.OTHER_OWNER\n",
        "",
        EXPLORED["the same owner again, a doubled answer"],
    ),
    Mutant(
        "earlier owners are obeyed",
        messages,
        "    if header.owner_revision < known.revision:\n"
        "        return MessageVerdict.OTHER_OWNER, known\n"
        "    if header.owner_revision > known.revision or not known.name:\n"
        "        known = KnownOwner(header.sender, header.owner_revision)\n"
        "    elif known.name != header.sender:\n"
        "        return MessageVerdict.OTHER_OWNER, known\n",
        "    if header.owner_revision > known.revision or not known.name:\n"
        "        known = KnownOwner(header.sender, header.owner_revision)\n",
        EXPLORED["doubled requests, another owner"],
    ),
    Mutant(
        "what a capture was told before its restart counts",
        messages,
        "    if header.capture_epoch != epoch:\n"
        "        return MessageVerdict.OTHER_CAPTURE_EPOCH, known\n",
        "",
        EXPLORED["doubled requests, a restart"],
    ),
    Mutant(
        "a lost capture keeps its place",
        replication_set,
        "return Step(rset) if place is None else _promoted(rset.without(place), is_settled)",
        "return Step(rset)",
        bound(2, crashes=1),
    ),
    Mutant(
        "a start that is given up is free at once",
        replication_set,
        "    return Step(rset.with_undetermined(place), (removal,))",
        "    return Step(rset.without(place), (removal,))",
        EXPLORED["what hangs"],
    ),
    Mutant(
        "a start that hangs is never given up",
        replication_set,
        "(place.role is not Role.SECONDARY and place != rset.starting)",
        "place.role is not Role.SECONDARY",
        EXPLORED["what hangs"],
    ),
    Mutant(
        "what does not stop is waited for without an end",
        replication_set,
        "    if rset.state is SetState.REMOVING:\n        return rset.places\n",
        "    return ()\n",
        EXPLORED["what hangs"],
    ),
    Mutant(
        "who still stops an earlier assignment is waited for as if it prepared",
        replication_set,
        "        if place is not None and _is_in_the_way(rset, place, status):\n"
        "            return Step(rset.with_undetermined(place._replace(token=status.token)))\n",
        "",
        EXPLORED["what hangs, one capture"],
    ),
]

NOT_NEEDED = [
    # its tokens are over: the loss of the capture freed all its places
    Mutant(
        "what a capture said before its restart counts",
        messages,
        "    if header.capture_epoch != epoch:\n"
        "        return MessageVerdict.OTHER_CAPTURE_EPOCH\n",
        "",
        bound(2, moves=1, restarts=1, doubles=1, pruning=False),
    ),
    # a table that ends is placed again: it costs a restart, nothing more
    Mutant(
        "a removal ends what came later",
        agent,
        "if request.token < held.token or held.state is TableState.STOPPING:",
        "if held.state is TableState.STOPPING:",
        bound(2, channel=2, moves=1),
    ),
    # a commit is sent only once the table was prepared, and a new preparation has another token
    Mutant(
        "a commit of what is not prepared",
        agent,
        "    if held.state is not TableState.PREPARED:\n        return Applied(held)\n",
        "",
        bound(2, moves=1, restarts=1, doubles=1),
    ),
    # once the removal has come it is stopping, and that has its deadline
    Mutant(
        "who is replaced may take any time to stop",
        replication_set,
        " or (is_replaced and place.role is Role.PRIMARY)",
        "",
        EXPLORED["what hangs, a move"],
    ),
]
"""Rules without which nothing goes wrong as far as was explored, and why."""
