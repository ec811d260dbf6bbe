"""What programs become: ops in the user's order, indices by axis, temporaries where loads stood inside expressions."""

from __future__ import annotations

from tests.frontend import operators as o
from tests.frontend.ops import captured, lines, only, walk
from tests.selection import table
from tilelink.frontend import Program
from tilelink.ir.program import (
    At,
    Constant,
    CopyProgram,
    If,
    Notify,
    OfTile,
    Store,
    Tiles,
)


# ------------------------------------------------------------------------------------------------- programs of the project
def test_gather() -> None:
    assert lines(o.gather.captured.body) == [
        "tile rows ('tile',)",
        "wait worker shard[tile tile]",
        "move worker shard rows[tile tile]",
        "notify worker rows[tile tile]",
    ]


def test_matmul() -> None:
    program = o.matmul.captured
    assert lines(program.body) == [
        "tile out ('m', 'n')",
        "wait worker rows[tile m, :]",
        "out_shape = shape out None None",
        "rows_acc_dtype = acc_dtype rows None None",
        "acc = tl.zeros(out_shape, rows_acc_dtype)",
        "tiles k weight 0",
        "  wait worker weight[tile k, tile n]",
        "  rows_tile = load rows[tile m, tile k]",
        "  weight_tile = load weight[tile k, tile n]",
        "  acc = tl.dot(rows_tile, weight_tile, acc, out_dtype=acc.dtype)",
        "store own out[tile m, tile n] acc",
        "notify worker out[tile m, tile n]",
    ]
    assert program.domain == "out"
    assert [(p.name, p.role, str(p.shape)) for p in program.params] == [
        ("rows", "in", "M K"),
        ("weight", "in", "K N"),
        ("out", "out", "M N"),
    ]


def test_reduce_writes_augmented_assignment_out() -> None:
    assert lines(o.reduce.captured.body)[4:8] == [
        "tiles s inbox 0",
        "  wait worker inbox[s, tile m, tile n]",
        "  inbox_tile = load inbox[s, tile m, tile n]",
        "  acc = acc + inbox_tile",
    ]


def test_ring_wraps() -> None:
    assert lines(o.ring.captured.body) == [
        "tile partial ('s', 'm', 'n')",
        "wait worker partial[s, tile m, tile n]",
        "partial_tile = load partial[s, tile m, tile n]",
        "partial_acc_dtype = acc_dtype partial None None",
        "acc = partial_tile.to(partial_acc_dtype)",
        "owner = holder out[tile m, tile n]",
        "if owner != (s + 1) % RANKS",
        "  wait worker inbox[s, tile m, tile n] peer (s + 1) % RANKS",
        "  inbox_tile = load inbox[s, tile m, tile n]",
        "  acc = acc + inbox_tile",
        "if owner == s",
        "  store own out[tile m, tile n] acc",
        "  notify worker out[tile m, tile n]",
        "else",
        "  store holders inbox[(s + RANKS - 1) % RANKS, tile m, tile n] acc",
        "  notify worker inbox[(s + RANKS - 1) % RANKS, tile m, tile n] peer (s + RANKS - 1) % RANKS",
    ]


def test_ring_knows_how_far_a_coordinate_is() -> None:
    last = o.ring.captured.body[-1]
    assert isinstance(last, If)
    push, notify = last.orelse
    assert isinstance(push, Store)
    assert isinstance(notify, Notify)
    assert isinstance(push.index[0], At)
    assert push.index[0].ring == ("s", -1)
    assert notify.peer is not None
    assert notify.peer.ring == ("s", -1)


def test_matmul_rs_compares_a_holder_with_a_coordinate() -> None:
    assert lines(o.matmul_rs.captured.body)[7:] == [
        "out_owner = holder out[tile m, tile n]",
        "if out_owner != s",
        "  store holders inbox[s, tile m, tile n] acc",
        "  notify worker inbox[s, tile m, tile n]",
        "else",
        "  tiles q inbox 0",
        "    if q != s",
        "      wait worker inbox[q, tile m, tile n]",
        "      inbox_tile = load inbox[q, tile m, tile n]",
        "      acc = acc + inbox_tile",
        "  store own out[tile m, tile n] acc",
    ]


def test_one_name_stands_for_all_indices() -> None:
    assert lines(o.scatter.captured.body) == [
        "tile src ('tile_r', 'tile_m')",
        "wait worker src[tile_r, tile tile_m]",
        "src_tile = load src[tile_r, tile tile_m]",
        "store holders dst[tile_r, tile tile_m] src_tile",
        "notify worker dst[tile_r, tile tile_m]",
    ]


def test_the_same_function_under_another_signature() -> None:
    whole = o.program("R/R ... -> R ...", name="whole")(o.move)
    assert lines(whole.captured.body)[0] == "tile src ('tile',)"
    assert whole.captured.name == "whole"
    assert whole.function is o.scatter.function


def test_rank_primitives_run_on_a_stream() -> None:
    assert lines(o.scatter_dma.captured.body)[1:] == [
        "wait stream partial[chunk_r, tile chunk_m, tile chunk_n]",
        "move stream partial inbox[chunk_r, tile chunk_m, tile chunk_n]",
        "notify stream inbox[chunk_r, tile chunk_m, tile chunk_n]",
    ]


def test_dispatch_mixes_positions_and_vectors() -> None:
    assert lines(o.dispatch.captured.body)[3:] == [
        "first = load start[e]",
        "start_tile = load start[e + 1]",
        "start_tile_2 = load start[e]",
        "n = start_tile - start_tile_2",
        "tiles c inbox 2",
        "  c_range = range inbox 2 c",
        "  at = tl.where(c_range < n, c_range, -1)",
        "  who = load order[vector tl.where(at >= 0, first + at, -1)]",
        "  x_tile = load x[vector who, :]",
        "  store holders inbox[e, s, vector at, :] x_tile",
        "store holders counts[e, s] n",
        "notify worker inbox[e, s, :, :]",
        "notify worker counts[e, s]",
    ]


def test_flash_evaluates_in_order() -> None:
    program = o.flash.captured
    assert lines(program.body)[:12] == [
        "tile out ('s', 'h', None)",
        "g_size = size keys 1 None",
        "h_size = size q 1 None",
        "g = h * g_size // h_size",
        "rows = range out 0 s",
        "query = load q[tile s, h, :]",
        "top = tl.full((rows.shape[0],), NEG, tl.float32)",
        "total = tl.zeros((rows.shape[0],), tl.float32)",
        "acc = tl.zeros(query.shape, tl.float32)",
        "T_size = size keys 0 None",
        "s_end = end out 0 s",
        "tiles t keys 0",
    ]
    assert program.constants == (Constant("causal", "bool", True),)
    assert program.globals == (("NEG", -1e30),)
    (loop,) = only(Tiles, program)
    assert str(loop.stop) == "s_end if causal else T_size"


@table(
    "program, copy_program",
    [
        (o.gather, CopyProgram("shard", "rows", pull=True)),
        (o.scatter, CopyProgram("src", "dst", pull=False)),
        (o.share, CopyProgram("src", "dst", pull=False)),
        (o.scatter_dma, CopyProgram("partial", "inbox", pull=False, pinned=True)),
        (o.matmul, None),
        (o.send_back, None),
        (o.ring_gather, None),
    ],
)
def test_movements(program: Program, copy_program: CopyProgram | None) -> None:
    assert program.captured.copy_program == copy_program


MOVE = """
tile = tl.tile_id(src)
tl.consumer_tile_wait(src, tile)
tl.tile_push_data(dst, tile, tl.tile_load(src, tile))
tl.producer_tile_notify(dst, tile)
"""


@table(
    "old, new",
    [
        ("tl.consumer_tile_wait(src, tile)", "tl.consumer_tile_wait(src)"),
        ("tl.producer_tile_notify(dst, tile)", "tl.producer_tile_notify(src, tile)"),
        ("tl.tile_load(src, tile)", "tl.tile_load(src, tile) + 1"),
        ("tl.tile_load(src, tile)", "tl.tile_load(src, tile, other=1)"),
        ("tl.tile_load(src, tile)", "tl.tile_load(src, 0)"),
        ("tl.tile_load(src, tile))", "tl.tile_load(src, tile), mask=True)"),
        ("tl.tile_push_data", "tl.tile_store"),
        ("tl.consumer_tile_wait(src, tile)\n", ""),
        ("tl.tile_id(src)", "tl.tile_id(dst)"),
        ("tile = tl.tile_id(src)", "tile, _ = tl.tile_id(src)"),
        ("tl.tile_push_data(dst, tile, tl.tile_load(src, tile))", "tl.tile_push_data(dst, tile, 0)"),
    ],
)
def test_what_is_no_movement(old: str, new: str) -> None:
    assert captured("M/R K -> M K", "src, dst", MOVE).copy_program == CopyProgram("src", "dst", pull=False)
    assert old in MOVE
    assert captured("M/R K -> M K", "src, dst", MOVE.replace(old, new)).copy_program is None


@table(
    "signature, parameters, body",
    [
        ("M, M/R -> M", "other, src, dst", MOVE.replace("tl.tile_id(src)", "tl.tile_id(other)")),
        ("R/R -> R", "src, dst", MOVE.replace("tl.producer_tile_notify(dst, tile)", "tl.peer_tile_notify(dst, tile, tile)")),
        ("R/R -> R", "src, dst", MOVE.replace("tl.consumer_tile_wait(src, tile)", "tl.peer_tile_wait(src, tile, tile)")),
    ],
)  # fmt: skip
def test_what_runs_for_others_or_names_peers_is_no_movement(signature: str, parameters: str, body: str) -> None:
    assert captured(signature, parameters, body).copy_program is None


def test_a_guarded_movement_is_a_program() -> None:
    assert lines(o.send_back.captured.body)[3:] == [
        "c_begin = begin y 2 c",
        "counts_tile = load counts[e, s]",
        "if c_begin < counts_tile",
        "  y_tile = load y[e, s, tile c, tile h]",
        "  store holders back[e, s, tile c, tile h] y_tile",
        "notify worker back[e, s, tile c, tile h]",
    ]


@table("program", [v for v in vars(o).values() if isinstance(v, Program)], ids=lambda p: p.name)
def test_every_op_knows_its_line(program: Program) -> None:
    everything = list(walk(program.captured.body))
    assert len(everything) >= 4
    for op in everything:
        assert op.loc.file == program.function.__code__.co_filename
        text = op.loc.source_line()
        with open(op.loc.file, encoding="utf-8") as file:
            assert text == file.read().splitlines()[op.loc.line - 1]
        assert text[op.loc.column : op.loc.end_column].strip()


# ------------------------------------------------------------------------------------------------------------- vocabulary
def test_names_of_temporaries_never_clash() -> None:
    program = captured(
        "M N -> M N", "a, out", "m, n = tl.tile_id(out)\na_tile = 3\ntl.tile_store(out, (m, n), tl.tile_load(a, (m, n)) + a_tile)"
    )  # fmt: skip
    assert lines(program.body)[2:] == [
        "a_tile_2 = load a[tile m, tile n]",
        "store own out[tile m, tile n] a_tile_2 + a_tile",
    ]


def test_bounds_are_taken_once_where_they_are_known() -> None:
    program = captured(
        "M N -> M N",
        "a, out",
        """
m, n = tl.tile_id(out)
x = tl.size(a, 0) + tl.size(a, 0)
if x == 3:
    y = tl.tile_begin(a, m) + tl.size(a, 0)
z = tl.tile_begin(a, m)
""",
    )
    assert lines(program.body)[1:] == [
        "M_size = size a 0 None",
        "x = M_size + M_size",
        "if x == 3",
        "  m_begin = begin a 0 m",
        "  y = m_begin + M_size",
        "z = begin a 0 m",
    ]


def test_parts_of_a_tuple_of_indices() -> None:
    program = captured(
        "e T H, e -> e T H",
        "a, b, out",
        """
tile = tl.tile_id(out)
x = tl.tile_load(b, tile[0])
y = tl.tile_load(a, tile[:2])
z = tl.tile_begin(a, tile[-1])
e, t, h = tile
w = tl.tile_load(a, (e, t))
alias = t
v = tl.tile_range(a, alias)
u = tile[0] + 1
""",
    )
    assert lines(program.body)[1:] == [
        "x = load b[tile_e]",
        "y = load a[tile_e, tile tile_t, :]",
        "z = begin a 2 tile_h",
        "w = load a[tile_e, tile tile_t, :]",
        "v = range a 1 tile_t",
        "u = tile_e + 1",
    ]


def test_missing_entries_are_whole_axes_and_none_is_left_out() -> None:
    program = captured(
        "M N -> M N",
        "a, out",
        "m, n = tl.tile_id(out)\nx = tl.tile_load(a)\ny = tl.tile_load(a, m, other=None)\ntl.consumer_tile_wait(a, None)",
    )
    assert lines(program.body)[1:] == ["x = load a[:, :]", "y = load a[tile m, :]", "wait worker a[all]"]


def test_arguments_by_name() -> None:
    program = captured(
        "M N -> M N",
        "a, out",
        """
m, n = tl.tile_id(t=out)
tl.tile_store(value=0, tile=[m, n], t=out, mask=True)
tl.producer_tile_notify(out, mode="p2p", tile=(m, n))
""",
    )
    store, notify = program.body[1:]
    assert isinstance(store, Store)
    assert isinstance(notify, Notify)
    assert (str(store.value), str(store.mask)) == ("0", "True")
    assert notify.mode == "p2p"
    assert notify.index == (OfTile("m"), OfTile("n"))


def test_tiles_in_parts() -> None:
    (loop,) = only(Tiles, o.partial_decode.captured)
    assert loop.part is not None
    assert [str(e) for e in loop.part] == ["c", "c_size"]
    assert (loop.start, loop.stop) == (None, None)


@table(
    "limits, start, stop",
    [
        ("start=3", "3", None),
        ("start=None, stop=None", None, None),
        ("stop=5 if causal else None", None, "5 if causal else N_size"),
        ("start=None if causal else 5", "0 if causal else 5", None),
        ("start=tl.tile_begin(out, n), stop=tl.tile_end(out, n)", "n_begin", "n_end"),
    ],
)
def test_limits_of_tiles(limits: str, start: str | None, stop: str | None) -> None:
    program = captured(
        "M N -> M N",
        "a, out, *, causal: bool = True",
        f"m, n = tl.tile_id(out)\nfor k in tl.tiles(a, axis=1, {limits}):\n    pass",
    )
    (loop,) = only(Tiles, program)
    assert [None if e is None else str(e) for e in (loop.start, loop.stop)] == [start, stop]


def test_loops_and_checks() -> None:
    program = captured(
        "M N -> M N",
        "a, out",
        '''
"""The document of the program."""
m, n = tl.tile_id(out)
for i in range(2):
    pass
for i in tl.range(tl.size(a, 0), num_stages=2):
    x = i + 1
for i in tl.static_range(3):
    "a remark"
i = 0
while i < tl.size(a, 0):
    i += 1
assert i == 3
assert i == 3, "it is three"
tl.device_assert(i == 3, "it is three")
''',
    )
    assert lines(program.body)[1:] == [
        "for i_2 in range(2)",
        "M_size = size a 0 None",
        "for i_2 in tl.range(M_size, num_stages=2)",
        "  x = i_2 + 1",
        "for i_2 in tl.static_range(3)",
        "i = 0",
        "while i < M_size",
        "  i = i + 1",
        "check i == 3: i == 3",
        "check i == 3: it is three",
        "check i == 3: it is three",
    ]


def test_several_targets_and_tuples() -> None:
    program = captured(
        "M N -> M N",
        "a, out",
        """
m, n = tl.tile_id(out)
x = y = 3
x, y = y, x
p, q = x + 1, tl.size(a, 0)
pair = 1, 2
r, s = pair
t: tl.constexpr = 4
""",
    )
    assert lines(program.body)[1:] == [
        "x = 3",
        "y = x",
        "x, y = y, x",
        "p = x + 1",
        "q = size a 0 None",
        "pair = (1, 2)",
        "r, s = pair",
        "t = 4",
    ]


def test_branches() -> None:
    program = captured(
        "M N -> M N",
        "a, out, *, kind: str = 'x'",
        """
m, n = tl.tile_id(out)
if kind == "x":
    y = 1
elif kind == "z":
    y = 2
else:
    y = 3
tl.tile_store(out, (m, n), y)
""",
    )
    assert lines(program.body)[1:] == [
        "if kind == 'x'",
        "  y = 1",
        "else",
        "  if kind == 'z'",
        "    y = 2",
        "  else",
        "    y = 3",
        "store own out[tile m, tile n] y",
    ]


def test_a_name_of_the_path_taken_stays_where_the_compiler_knows_the_path() -> None:
    program = captured(
        "M N -> M N",
        "a, out, *, extra: bool = True",
        "m, n = tl.tile_id(out)\nif extra:\n    x = tl.tile_load(a, (m, n))\nif extra:\n    tl.tile_store(out, (m, n), x)",
    )
    assert lines(program.body)[-1] == "  store own out[tile m, tile n] x"


def test_constants() -> None:
    program = captured(
        "M -> M",
        "a, out, *, flag: bool, times=3, scale: float = 1, mode='fast', rate: 'float' = 0.5",
        "m = tl.tile_id(out)",
    )
    assert program.constants == (
        Constant("flag", "bool", None),
        Constant("times", "int", 3),
        Constant("scale", "float", 1.0),
        Constant("mode", "str", "fast"),
        Constant("rate", "float", 0.5),
    )
    assert isinstance(program.constants[2].default, float)
