"""What capture knows of values: whether they are blocks, and whether data flows into them."""

from __future__ import annotations

from tests.frontend import operators as o
from tests.frontend.ops import captured, only, short
from tests.selection import table
from tilelink.ir.program import At, Bounds, Check, Expr, If, Let, Load, Notify, Store, Tiles


@table(
    "expression, vector",
    [
        ("tl.tile_load(a, (m, n))", True),
        ("tl.tile_load(a, (0, 0))", False),
        ("tl.tile_load(a, 0)", True),
        ("tl.tile_load(a, (who, n))", True),
        ("tl.sum(x)", False),
        ("tl.sum(x, axis=None)", False),
        ("tl.sum(x, axis=0)", True),
        ("tl.sum(tl.sum(x, axis=0), axis=0)", False),
        ("tl.max(x, 1)", True),
        ("tl.max(x, 1, keep_dims=True)", True),
        ("x.sum()", False),
        ("x.to(tl.float32)", True),
        ("x[:, None]", True),
        ("x[0]", True),
        ("x.shape[0]", False),
        ("x.shape", False),
        ("x.dtype", False),
        ("tl.arange(0, 4)", True),
        ("tl.zeros((4,), tl.float32)", True),
        ("tl.full([4], 0, tl.float32)", True),
        ("tl.tile_range(a, m)", True),
        ("tl.tile_begin(a, m)", False),
        ("tl.size(a, 0)", False),
        ("tl.rank_of(out, (m, n))", False),
        ("1 if flag else x", True),
        ("tl.where(x > 0, 1, 0)", True),
        ("-x", True),
        ("tl.minimum(3, 4)", False),
        ("min(3, 4)", False),
        ("scalar + 1", False),
        ("tl.dot(x, x)", True),
        ("tl.expand_dims(tl.arange(0, 4), 0)", True),
        ("(scalar, x)", True),
    ],
)
def test_what_is_a_block_of_values(expression: str, vector: bool) -> None:
    program = captured(
        "M N, P i32 -> M/R N",
        "a, order, out, *, flag: bool = True",
        f"""
m, n = tl.tile_id(out)
x = tl.tile_load(a, (m, n), other=0.0)
who = tl.tile_load(order)
scalar = 3
value = {expression}
tl.tile_store(out, (m, n), value, mask=False)
""",
    )
    store = program.body[-1]
    assert isinstance(store, Store)
    assert store.value.vector is vector


@table(
    "expression, positional",
    [
        ("tl.tile_load(a, (0, 0))", False),
        ("tl.tile_begin(a, m) + 1", True),
        ("tl.rank_of(out, (m, n))", True),
        ("tl.rank_of(out, (loaded, n))", False),
        ("loaded + 1", False),
        ("tl.sum(tl.where(tl.tile_range(a, m) < tl.tile_end(a, m), 1, 0))", True),
        ("block.shape[0]", True),
        ("block.dtype", True),
        ("carried", False),
        ("steps", True),
        ("branched", False),
        ("chosen", True),
        ("counted", False),
        ("1 if loaded > 0 else 2", False),
    ],
)
def test_what_data_flows_into(expression: str, positional: bool) -> None:
    program = captured(
        "M N -> M/R N",
        "a, out",
        f"""
m, n = tl.tile_id(out)
loaded = tl.tile_load(a, (0, 0))
block = tl.tile_load(a, (m, n))
carried, steps, branched, chosen, counted = 0, 0, 0, 0, 0
for k in tl.tiles(a, axis=1):
    if carried > 3:
        branched = 1
    carried += loaded
    steps += 1
if tl.tile_begin(a, m) == 0:
    chosen = 1
for i in range(loaded):
    counted += 1
value = {expression}
assert value == 0
""",
    )
    check = program.body[-1]
    assert isinstance(check, Check)
    assert check.condition.positional is positional


@table(
    "limits, positional",
    [
        ("stop=end", True),
        ("stop=tl.tile_range(out, m) + 1 if flag else None", True),
        ("start=loaded", False),
        ("", True),
    ],
)
def test_a_mask_is_a_block_of_the_kind_of_its_limits(limits: str, positional: bool) -> None:
    program = captured(
        "M N, P i32 -> M N",
        "a, x, out, *, flag: bool = True",
        f"""
m, n = tl.tile_id(out)
end, loaded = tl.tile_end(out, m), tl.tile_load(x, 0)
for k in tl.tiles(a, axis=0):
    found = tl.tile_mask(a, k, {limits})
    value = tl.max(found)
""",
    )
    (loop,) = only(Tiles, program)
    (mask,) = [op for op in loop.body if isinstance(op, Bounds) and op.what == "mask"]
    assert (mask.name, mask.var, mask.axis) == ("found", "k", 0)
    assert [e is not None for e in (mask.start, mask.stop)] == ["start" in limits, "stop" in limits]
    (value,) = [op for op in loop.body if isinstance(op, Let)]
    assert value.value.positional is positional


def test_a_segment_is_data() -> None:
    (found,) = [op for op in o.grouped.captured.body if isinstance(op, Bounds) and op.what == "segment"]
    loads = [op for op in only(Load, o.grouped.captured) if op.param == "weight"]
    assert isinstance(loads[0].index[0], At)
    assert loads[0].index[0].expr == Expr(found.name, (found.name,), vector=False, positional=False)


def test_waits_may_stand_under_data() -> None:
    (branch,) = only(If, o.expert_matmul.captured)
    assert not branch.test.positional
    assert short(branch.body[0]) == "wait worker inbox[e, r, tile c, :]"


def test_the_same_notify_on_both_paths() -> None:
    program = captured(
        "e, M N -> M N",
        "flag, a, out",
        """
m, n = tl.tile_id(out)
if tl.tile_load(flag, 0) > 0:
    tl.tile_store(out, (m, n), 1)
    tl.producer_tile_notify(out, (m, n))
else:
    tl.producer_tile_notify(out, (m, n))
""",
    )
    assert len(only(Notify, program)) == 2
