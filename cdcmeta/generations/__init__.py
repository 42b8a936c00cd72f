"""CDC generations: they map each write to a stream, each from its time on (ScyllaDB's model).

The ring of tokens is split into ranges, each with a stream for each shard of the node that owns
the range (`Topology`). So a log row is on the node and shard of its base row. Needs
NumPy: the extra `generations`.
"""

from snapkv.base.extras import requires_extra

with requires_extra("generations", "generations"):
    from cdcmeta.generations.cdclog import CdcLog
    from cdcmeta.generations.consumer import StreamConsumer, Window
    from cdcmeta.generations.generation_layout import ConsumerId, Generation, Switch
    from cdcmeta.generations.generation_log import GenerationLog
    from cdcmeta.generations.known_generations import ORIGINAL, TODAY, Generations
    from cdcmeta.generations.log_member import Member
    from cdcmeta.generations.log_rows import LogRow, Operation
    from cdcmeta.generations.streams import StreamId
    from cdcmeta.generations.tokens import Sharding, composite_key, murmur3_token, murmur3_tokens
    from cdcmeta.generations.topology import TokenRange, Topology

__all__ = [
    "ORIGINAL",
    "TODAY",
    "CdcLog",
    "ConsumerId",
    "Generation",
    "GenerationLog",
    "Generations",
    "LogRow",
    "Member",
    "Operation",
    "Sharding",
    "StreamConsumer",
    "StreamId",
    "Switch",
    "TokenRange",
    "Topology",
    "Window",
    "composite_key",
    "murmur3_token",
    "murmur3_tokens",
]
