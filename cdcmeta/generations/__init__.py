"""CDC generations: which stream a write's log row goes to, and from when on (ScyllaDB's model).

The ring of tokens is split into ranges, each with a stream for each shard of the node that owns
it (`Topology`); so a log row lives where its base row does. Needs NumPy: the extra `generations`.
"""

from snapkv.extras import extra

with extra("generations", "generations"):
    from cdcmeta.generations.cdc.cdclog import CdcLog as CdcLog
    from cdcmeta.generations.cdc.consumer import StreamConsumer as StreamConsumer
    from cdcmeta.generations.cdc.consumer import Window as Window
    from cdcmeta.generations.cdc.rows import LogRow as LogRow
    from cdcmeta.generations.cdc.rows import Operation as Operation
    from cdcmeta.generations.log.layout import ConsumerId as ConsumerId
    from cdcmeta.generations.log.layout import Generation as Generation
    from cdcmeta.generations.log.layout import Switch as Switch
    from cdcmeta.generations.log.log import GenerationLog as GenerationLog
    from cdcmeta.generations.log.member import Member as Member
    from cdcmeta.generations.model.batches import murmur3_tokens as murmur3_tokens
    from cdcmeta.generations.model.metadata import Generations as Generations
    from cdcmeta.generations.model.rules import ORIGINAL as ORIGINAL
    from cdcmeta.generations.model.rules import TODAY as TODAY
    from cdcmeta.generations.model.streams import StreamId as StreamId
    from cdcmeta.generations.model.tokens import Sharding as Sharding
    from cdcmeta.generations.model.tokens import composite_key as composite_key
    from cdcmeta.generations.model.tokens import murmur3_token as murmur3_token
    from cdcmeta.generations.model.topology import TokenRange as TokenRange
    from cdcmeta.generations.model.topology import Topology as Topology
