"""The words that users import: what capture accepts is what the stubs say."""

from __future__ import annotations

import inspect

import pytest

import tilelink.language as tl
from tests.frontend.harness import message
from tests.selection import table
from tilelink.frontend.primitives import PRIMITIVES

THE_NINE = {
    "producer_tile_notify",
    "consumer_tile_wait",
    "peer_tile_notify",
    "peer_tile_wait",
    "rank_wait",
    "rank_copy_data",
    "rank_notify",
    "tile_push_data",
    "tile_pull_data",
}


def test_the_nine_primitives() -> None:
    assert set(PRIMITIVES) >= THE_NINE


def test_every_word_is_exported() -> None:
    assert sorted([*PRIMITIVES, "Tensor"]) == sorted(tl.__all__)


@table("name", sorted(PRIMITIVES))
def test_stub_and_lowering_have_the_same_parameters(name: str) -> None:
    stub, lowered = inspect.signature(getattr(tl, name)), inspect.signature(PRIMITIVES[name].lower).parameters
    assert ["call", *stub.parameters] == list(lowered)
    for parameter in stub.parameters.values():
        required = lowered[parameter.name].default is inspect.Parameter.empty
        # `axis=0` of the stub is the default that lowering fills in.
        assert (parameter.default is inspect.Parameter.empty) == required


@table("name", sorted(PRIMITIVES))
def test_words_are_documented_and_do_not_run(name: str) -> None:
    word = getattr(tl, name)
    assert inspect.getdoc(word)
    if name in THE_NINE:
        assert "paper section" in str(inspect.getdoc(word))
    arguments = [None for p in inspect.signature(word).parameters.values() if p.default is p.empty]
    assert message(lambda: word(*arguments)) == (
        f"TL100: `tl.{name}` was called outside a tile program\n"
        "  why: tile programs are read from their source and compiled; their primitives do not run as Python\n"
        "  do:  use it inside a function decorated with `@tilelink.program(...)`, and call that from an operator"
    )


def test_everything_else_is_triton_s() -> None:
    import triton.language

    assert tl.float32 is triton.language.float32
    assert tl.dot is triton.language.dot


def test_what_triton_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'zeroes'"):
        _ = tl.zeroes
    assert not hasattr(tl, "__wrapped__")
