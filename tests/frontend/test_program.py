"""The object that `@program` makes."""

from __future__ import annotations

import pytest

from tests.frontend import operators as o
from tests.frontend.harness import HEADER, load
from tilelink.errors import TilelinkError
from tilelink.frontend import Program, program


def test_what_it_shows() -> None:
    assert repr(o.count) == "<tile program count: T k i32 <e -> e i32>"
    shown = o.count._repr_html_()
    assert "<caption>count: T k i32 &lt;e -&gt; e i32</caption>" in shown
    assert "<pre>        tl.consumer_tile_wait(choice, t)</pre></td><td>waits for choice</td>" in shown


def test_names() -> None:
    def f(a: object, out: object) -> None: ...

    assert program("M -> M")(f).name == "f"
    assert program("M -> M", name="other")(f).name == "other"
    assert str(program("M -> M")(f).signature) == "M -> M"


def test_it_is_read_once(tmp_path) -> None:
    module = load(tmp_path, HEADER + '@program("M -> M")\ndef f(a, out):\n    m = tl.tile_id(out)\n')
    assert isinstance(module.f, Program)
    first = module.f.captured
    (tmp_path / "user.py").unlink()
    assert module.f.captured is first


def test_what_is_wrong_with_a_function_is_said_at_its_first_use(tmp_path) -> None:
    module = load(tmp_path, HEADER + '@program("M -> M")\ndef f(a, out):\n    return 3\n')
    with pytest.raises(TilelinkError):
        _ = module.f.captured


def test_helpers_may_be_defined_after_the_program(tmp_path) -> None:
    source = (
        HEADER
        + '@program("M -> M")\ndef f(a, out):\n    m = tl.tile_id(out)\n    tl.tile_store(out, m, LATE)\nLATE = 3\n'
    )
    assert load(tmp_path, source).f.captured.globals == (("LATE", 3),)
