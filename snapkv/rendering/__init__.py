"""Values and their differences for people: one way to render them, for each medium.

`decode` finds out what the bytes of a value say: a `Decoded` with a tree, a text, or the bytes.
`compare` returns the `ValueDifference` of two of them. Its `lines()` are made of styled parts that
a terminal, a page or a notebook shows. `blame` says which version last changed each path or line.
`shortened` is for one line, `Redaction` for values that are never shown.

    before, after = (snapkv.rendering.decode(value) for value in (old, new))
    difference = snapkv.rendering.compare(before, after, ignore=["kubernetes"])
    for line in difference.lines():
        print(snapkv.rendering.plain(line))     # ~ spec.replicas: 2 -> 3

It opens no store and writes nothing. All work is bounded: a value that breaks a bound is shown as
text or hex. Text in lines has no control characters.

Reading the source: `snapkv.base.text` makes text safe to show; `value_tree` and `paths` make
structured values. `value_decoding` finds the kind and reads JSON and msgpack, `yaml_text` and
`kubernetes` read one kind each, `decoder` runs other programs. `alignment` finds what corresponds
and what changed in texts and bytes, `tree_changes` what changed in trees; `value_difference` joins
and shows them, with the lines of `text_lines`. `managed_fields` and `audit_log` say who changed an
object of Kubernetes.
"""

from snapkv.base.text import escaped, key_text, preview, quoted, shortened
from snapkv.rendering.alignment import Piece
from snapkv.rendering.decoded import KINDS, Decoded
from snapkv.rendering.decoder import Decoder, command_decoder, decoders
from snapkv.rendering.origins import Blame, blame
from snapkv.rendering.paths import KUBERNETES_NOISE, path_text
from snapkv.rendering.text_lines import Line, Part, plain
from snapkv.rendering.tree_changes import PathChange
from snapkv.rendering.value_decoding import decode
from snapkv.rendering.value_difference import Redaction, Stat, ValueDifference, compare

__all__ = [
    "KINDS",
    "KUBERNETES_NOISE",
    "Blame",
    "Decoded",
    "Decoder",
    "Line",
    "Part",
    "PathChange",
    "Piece",
    "Redaction",
    "Stat",
    "ValueDifference",
    "blame",
    "command_decoder",
    "compare",
    "decode",
    "decoders",
    "escaped",
    "key_text",
    "path_text",
    "plain",
    "preview",
    "quoted",
    "shortened",
]
