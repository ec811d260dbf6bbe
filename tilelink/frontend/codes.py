"""Every diagnostic that the frontend gives, by its stable code. docs/errors.md is made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CODES: Mapping[str, str] = MappingProxyType(
    {
        "TL100": "a primitive was called outside a tile program",
        # signatures
        "TL101": "a signature does not read",
        "TL102": "the words of one tensor do not go together",
        "TL103": "an axis is split in a way that has no meaning",
        "TL104": "an owner map does not read",
        "TL105": "axes of ranks that cannot be declared so",
        # the function
        "TL110": "the source of a program cannot be read",
        "TL111": "Python that a tile program cannot contain",
        "TL112": "parameters and signature differ",
        "TL113": "a keyword-only parameter without a kind",
        "TL114": "a reserved name",
        # names and values
        "TL120": "an unknown name",
        "TL121": "a tensor used as a value",
        "TL122": "a tile used as a number",
        "TL123": "a call that cannot be compiled",
        "TL124": "an object that cannot be compiled",
        "TL125": "a name that is not bound on every path",
        "TL126": "two different things under one name",
        # calls of primitives
        "TL130": "wrong arguments of a primitive",
        "TL131": "a primitive where it has no meaning",
        "TL132": "not a tensor parameter",
        "TL133": "no such axis",
        "TL134": "a load that would not be conditional",
        "TL135": "the value of an argument must be written out",
        # indices
        "TL140": "more index entries than axes",
        "TL141": "an index of one dimension used on another",
        "TL142": "not an index",
        "TL144": "a rank that is not an R coordinate",
        "TL145": "a coordinate that wraps used as a number",
        # tiles
        "TL150": "no tile_id, or more than one, or not at the top",
        "TL151": "names do not match what they are bound to",
        "TL152": "a segment of an axis without segments",
        "TL153": "the name of a tile is bound again",
        # signals
        "TL160": "the number of notifies depends on data",
        "TL161": "a signal inside a while loop",
        "TL162": "a notify in a loop whose length is data",
        "TL163": "rank_* beside something else",
        "TL164": "a pull that is not all of a movement",
        # calls in an operator
        "TL201": "a tile program was called outside an operator",
        "TL202": "wrong number or kind of arguments",
        "TL203": "axes do not match",
        "TL204": "contradictory sizes",
        "TL205": "an unknown size",
        "TL206": "contradictory dtypes",
        "TL207": "contradictory splits",
        "TL208": "a second use without a name",
        "TL209": "an unknown or unsuitable keyword",
        "TL210": "an operator's results do not match",
        "TL211": "symmetric, or what counts ranks, outside an operator",
        "TL212": "a symbolic tensor used as data",
        "TL213": "nothing tells which axis of ranks is meant",
        "TL214": "an owner map where the ranks have several axes",
    }
)
