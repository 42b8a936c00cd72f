"""Messages of all kinds for tests of their bytes: strategies, and some made by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from cdcmeta.scheduler.core import limits, states
from cdcmeta.scheduler.protocol import messages

HEADER = ["o", "c", 1, 1, 1]


def envelope_of(body, **header):
    """Return a message with a body, and with a header that is right but for what is said."""
    return messages.Envelope(messages.Header(*HEADER)._replace(**header), body)


numbers = st.integers(0, limits.INTEGER_MAX)
names = st.text(min_size=1, max_size=8)
tokens = st.builds(states.Token, numbers, numbers)
progress = st.builds(states.Progress, numbers, numbers, numbers)
statuses = st.builds(
    states.TableStatus, names, tokens, st.sampled_from(states.TableState), progress
)


def of_tables(each):
    """Return a strategy for a few of them, no two of the same table."""
    return st.lists(each, max_size=4, unique_by=lambda of_table: of_table[0]).map(tuple)


many = of_tables(statuses)
rests = st.none() | st.builds(states.Rest, progress, numbers, numbers)
barriers = st.builds(messages.Barrier, numbers, of_tables(st.tuples(names, numbers)))
requests = st.one_of(
    st.builds(states.AddRequest, names, tokens, progress, st.booleans()),
    st.builds(states.RemoveRequest, names, tokens),
)
asked = of_tables(st.tuples(names, tokens))
bodies = st.one_of(
    st.builds(messages.Announce, st.text(max_size=5)),
    st.builds(messages.Sync, st.text(max_size=5), many, st.booleans()),
    st.builds(messages.Heartbeat, asked, barriers, st.booleans(), numbers, st.booleans()),
    st.builds(messages.HeartbeatResponse, many, st.booleans(), rests),
    st.builds(messages.DispatchTable, requests),
    st.builds(messages.DispatchTableResponse, statuses),
)
headers = st.builds(messages.Header, names, names, numbers, numbers, numbers)
envelopes = st.builds(messages.Envelope, headers, bodies)
