"""CDC generations: which stream a write's log row goes to, and from when on (ScyllaDB's model).

The ring of tokens is split into ranges, each with a stream for each shard of the node that owns
it (`Topology`); so a log row lives where its base row does. Needs NumPy: the extra `generations`.
"""

from snapkv.extras import extra

with extra("generations", "generations"):
    from cdcmeta.generations.batches import murmur3_tokens as murmur3_tokens
    from cdcmeta.generations.cdclog import CdcLog as CdcLog
    from cdcmeta.generations.consumer import StreamConsumer as StreamConsumer
    from cdcmeta.generations.consumer import Window as Window
    from cdcmeta.generations.layout import ConsumerId as ConsumerId
    from cdcmeta.generations.layout import Generation as Generation
    from cdcmeta.generations.layout import Switch as Switch
    from cdcmeta.generations.log import GenerationLog as GenerationLog
    from cdcmeta.generations.member import Member as Member
    from cdcmeta.generations.metadata import Generations as Generations
    from cdcmeta.generations.rows import LogRow as LogRow
    from cdcmeta.generations.rows import Operation as Operation
    from cdcmeta.generations.rules import ORIGINAL as ORIGINAL
    from cdcmeta.generations.rules import TODAY as TODAY
    from cdcmeta.generations.streams import StreamId as StreamId
    from cdcmeta.generations.tokens import Sharding as Sharding
    from cdcmeta.generations.tokens import composite_key as composite_key
    from cdcmeta.generations.tokens import murmur3_token as murmur3_token
    from cdcmeta.generations.topology import TokenRange as TokenRange
    from cdcmeta.generations.topology import Topology as Topology
