"""AG+GEMM and GEMM+RS in which every name is a hole, and the names that an emitted file itself uses."""

from __future__ import annotations

SOURCE = """
import triton
import triton.language
import tilelink
import tilelink.language as {language}

{GLOBAL} = 3


@triton.jit
def {inner}({inner_parameter}):
    return {inner_parameter} + {GLOBAL}


@triton.jit
def {helper}({helper_parameter}, {helper_other}):
    {helper_local} = {inner}({helper_parameter}) - {GLOBAL}
    return {helper_local} * {helper_other}


@tilelink.program("{M}/R ... -> {M} ...")
def {gather}({shard}, {gathered}):
    {tile} = {language}.tile_id({gathered})
    {language}.consumer_tile_wait({shard}, {tile})
    {language}.tile_pull_data({gathered}, {tile}, source={shard})
    {language}.producer_tile_notify({gathered}, {tile})


@tilelink.program("R/R {M} ... -> R {M}/R ...")
def {scatter}({partial}, {inbox}):
    {tile} = {language}.tile_id({partial})
    {language}.consumer_tile_wait({partial}, {tile})
    {language}.tile_push_data({inbox}, {tile}, {language}.tile_load({partial}, {tile}))
    {language}.producer_tile_notify({inbox}, {tile})


@tilelink.program("{M} {K}, {K} {N} -> {M} {N}")
def {matmul}({rows}, {weight}, {out}, *, {scale}: float, {flag}: int):
    {m}, {n} = {language}.tile_id({out})
    {language}.consumer_tile_wait({rows}, {m})
    {acc} = {language}.zeros({language}.tile_shape({out}), {language}.float32)
    for {k} in {language}.tiles({weight}, axis=0):
        {loaded} = {language}.tile_load({rows}, ({m}, {k}))
        {acc} = {language}.dot({loaded}, {language}.tile_load({weight}, ({k}, {n})), {acc})
    for {count} in range({flag}):
        {acc} = {helper}({acc}, {scale})
    {language}.tile_store({out}, ({m}, {n}), {acc})
    {language}.producer_tile_notify({out}, ({m}, {n}))


@tilelink.program("{s} {M} {N} -> {M} {N}")
def {reduce}({parts}, {total}):
    {m}, {n} = {language}.tile_id({total})
    {acc} = {language}.zeros({language}.tile_shape({total}), {language}.float32)
    for {each} in {language}.tiles({parts}, axis=0):
        {language}.consumer_tile_wait({parts}, ({each}, {m}, {n}))
        {acc} += {language}.tile_load({parts}, ({each}, {m}, {n}))
    {language}.tile_store({total}, ({m}, {n}), {acc})
    {language}.producer_tile_notify({total}, ({m}, {n}))


@tilelink.operator("{M}/R {K}, {K} {N} -> {M} {N}")
def {ag_gemm}({x}, {w}):
    return {matmul}({gather}({x}), {w}, {scale}=2.0, {flag}=1)


@tilelink.operator("{M} {K}/R, {K}/R {N} -> {M}/R {N}")
def {gemm_rs}({x}, {w}):
    return {reduce}({scatter}({matmul}({x}, {w}, {scale}=2.0, {flag}=1)))
"""

MODULE_ROLES = ("language", "GLOBAL", "inner", "helper", "gather", "scatter", "matmul", "reduce", "ag_gemm", "gemm_rs")
SIZE_ROLES = ("M", "N", "K", "s")
LOCAL_ROLES = (
    "inner_parameter", "helper_parameter", "helper_other", "helper_local", "shard", "gathered", "tile", "partial",
    "inbox", "rows", "weight", "out", "scale", "flag", "m", "n", "acc", "k", "loaded", "count", "parts", "total", "each",
    "x", "w",
)  # fmt: skip

NAMES = (
    # imports and one-block kernels
    "tl", "shmem", "blocks", "call_entry", "finish", "ready", "call_exit", "await_flag",
    # parameters and locals that every file has
    "worker", "workers", "rank", "RANKS", "t", "ctx", "epoch", "epoch_at", "heard_at", "last_at", "entered_at",
    "ready_at", "left_at", "flag_at", "through_at", "value_at", "watch_at", "site",
    "take_credits", "flags", "expected", "doorbells", "pe", "owner", "turn", "start", "flag", "used",
    "inside", "source", "there", "credits", "first",
    # formulas
    "c", "c0", "c1", "i0", "i1", "i00", "sorted_t", "turned", "part_top", "group_top", "group_rows",
    # what is made of sizes, tiles and tensors
    "M", "M_part", "M_first", "M_here", "M_per_part", "M_tiles", "N", "N_tiles", "K", "K_part", "K_here", "tiles",
    "m", "m_begin", "m_end", "m_at", "m_in", "k_begin", "k_at", "n_in", "M_begin", "M_end", "axis_0_begin", "axis_0_at",
    "rows", "rows_tile", "rows_flags", "rows_expected", "rows_doorbells", "rows_ctx", "rows_there", "rows_stride_0", "rows_16x16",
    "x", "x_stage", "weight", "weight_tile", "out", "matmul_out", "matmul_out_tile", "dst", "dst_count", "acc", "s",
    "matmul", "gather", "scatter", "reduce", "gemm_rs", "ag_gemm", "ag_gemm_matmul", "gemm_rs_matmul", "helper",
    "i0_tensor", "t_size", "rank_", "rank_tensor", "enter_step", "v_1", "axis0",
    # Python's
    "id", "type", "sum", "match", "object", "list", "tuple", "input", "hash",
    # Triton's
    "constexpr", "program_id", "load", "store", "num_warps", "num_stages", "grid", "launch", "kernel", "device",
)  # fmt: skip

PYTHON = ("list", "tuple", "sum", "id", "type", "hash")
"""Those that a tile program cannot call by another meaning once they are assigned."""
