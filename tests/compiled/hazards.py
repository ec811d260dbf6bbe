"""Orders that machine code must keep and that neither a plan nor the simulated backend can show.

Texts are read line by line; each check gives the offending lines, so that a failure shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

RELEASE = re.compile(r"\b(atom|red)\.\S*(release|acq_rel)|\btt\.atomic_rmw .*\b(release|acq_rel),")
ACQUIRE = re.compile(r"\bld\.\S*acquire|\batom\.\S*acquire")
BARRIER = re.compile(r"\bbar\.sync|\bbarrier\.sync|\b(gpu|ttg)\.barrier\b")
STORE = re.compile(r"\bst\.global|\bst\.[bv]\d|\bst\.volatile|\btt\.store\b")
WIDTH = re.compile(r"\bst\.global\.(?:\w+\.)*?(?:v(\d)\.)?b(\d+)\b")
TMA_STORE = re.compile(r"\bcp\.async\.bulk\.tensor\S*\.global\.shared::cta|\basync_tma_copy_local_to_global\b")
TMA_LOAD = re.compile(r"\bcp\.async\.bulk\.tensor\S*\.shared::(cta|cluster)\.global")
BULK_WAIT = re.compile(r"\bcp\.async\.bulk\.wait_group\s+0;")
PROXY_FENCE = re.compile(r"\bfence\.proxy\.async;")


def _at(lines: list[str], pattern: re.Pattern[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if pattern.search(line)]


def code(text: str) -> list[str]:
    """Instructions and labels, without debug lines."""
    return [line.strip() for line in text.splitlines() if line.strip() and not re.match(r"\s*(\.loc|\.file|//)", line)]


def unguarded_releases(text: str) -> list[str]:
    """Releases, in TTGIR or PTX, with a store of all threads between them and the last barrier.

    A release covers the stores of its own thread alone. Triton 3.9 puts a barrier of its own into PTX, 3.6 none.
    """
    lines = code(text)
    found: list[str] = []
    for at in _at(lines, RELEASE):
        before = next((i for i in range(at - 1, -1, -1) if BARRIER.search(lines[i]) or _writes(lines[i])), None)
        if before is None or not BARRIER.search(lines[before]):
            found.append(f"{lines[before] if before is not None else 'nothing'} … {lines[at]}")
    return found


def narrow_stores(ptx: str) -> list[str]:
    """Stores of less than 8 bytes; flags have 8, and tiles of sizes that divide go 16 at a time."""
    return [line for line in code(ptx) if (found := WIDTH.search(line)) and int(found[1] or 1) * int(found[2]) < 64]


def _writes(line: str) -> bool:
    return bool(STORE.search(line) or TMA_STORE.search(line))


def unfinished_bulk_stores(ptx: str) -> list[str]:
    """TMA stores that a release which comes later covers without having waited for memory, fenced the proxies and met at a
    barrier."""
    lines = code(ptx)
    flow = _flow(lines, label=r"\$\w+:", jump=r"\bbra(?:\.uni)?\s+(\$\w+);", end=r"ret;|bra\b")
    found: list[str] = []
    for at in _at(lines, TMA_STORE):
        behind = nx.descendants(flow, at)
        release = next((r for r in _at(lines, RELEASE) if r > at and r in behind), None)
        if release is not None and not _in_order(lines[at:release], BULK_WAIT, PROXY_FENCE, BARRIER):
            found.append(f"{lines[at]} … {lines[release]}")
    return found


def _flow(lines: list[str], *, label: str, jump: str, end: str) -> nx.DiGraph[int]:
    """An edge from each line to what may be executed right behind it."""
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if re.match(label, line)}
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(range(len(lines)))
    for i, line in enumerate(lines):
        to = re.search(jump, line)
        if to is not None:
            flow.add_edge(i, labels[to[1]])
        if not re.match(end, line) and i + 1 < len(lines):
            flow.add_edge(i, i + 1)
    return flow


def unfenced_bulk_loads(ptx: str) -> list[str]:
    """TMA loads after an acquire without a fence between the proxies: what others wrote is not yet theirs to read."""
    lines = code(ptx)
    acquires = _at(lines, ACQUIRE)
    found: list[str] = []
    for at in _at(lines, TMA_LOAD):
        acquire = max((a for a in acquires if a < at), default=None)
        if acquire is not None and not _in_order(lines[acquire:at], PROXY_FENCE):
            found.append(f"{lines[acquire]} … {lines[at]}")
    return found


def _in_order(lines: list[str], *patterns: re.Pattern[str]) -> bool:
    at = 0
    for pattern in patterns:
        found = next((i for i in range(at, len(lines)) if pattern.search(lines[i])), None)
        if found is None:
            return False
        at = found + 1
    return True


# ------------------------------------------------------------------------------------------------------------------- AMD
def unguarded_amd_releases(amdgcn: str) -> list[str]:
    """Write-backs for a release that no barrier stands before, on some way there: what other waves stored is not covered."""
    lines = [line.strip() for line in amdgcn.splitlines()]
    flow = _flow(lines, label=r"\.L\w+:", jump=r"^s_c?branch\S*\s+([^;\s]+)", end=r"(s_branch|s_endpgm)\b")
    stops = _at(lines, re.compile(r"s_barrier|global_store|buffer_store|flat_store"))
    flow.remove_edges_from([*flow.in_edges(stops)])  # nothing above one of these matters
    found: list[str] = []
    for at in _at(lines, re.compile(r"buffer_wbl2")):
        before = nx.ancestors(flow, at)
        last = [i for i in stops if i in before]
        found += [f"{lines[i]} … {lines[at]}" for i in last if "s_barrier" not in lines[i]]
        if not last:
            found.append(f"nothing … {lines[at]}")
    return found


# ----------------------------------------------------------------------------------------------------------------- TTGIR
DOT = re.compile(r"\btt\.dot\b|\bttng\.warp_group_dot\b|\bttng\.tc_gen5_mma\b")
ASYNC_COPY = re.compile(r"\bttg\.async_copy_global_to_local\b|\bttng\.async_tma_copy_global_to_local\b")
POLL = re.compile(r"\btt\.atomic_rmw\b.*\bacquire\b")


@dataclass(frozen=True, slots=True)
class Loop:
    """An `scf.for` of a TTGIR text: its first and last line, and those of the loops around it, outermost first."""

    first: int
    last: int
    around: tuple[tuple[int, int], ...]


def loops(ttgir: str) -> tuple[list[str], list[Loop]]:
    """The lines, and every loop. Blocks are indented; a loop ends with the brace at its own depth."""
    lines = ttgir.splitlines()
    closed: list[tuple[int, int, tuple[int, ...]]] = []
    open_: list[tuple[int, int]] = []
    for i, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        while open_ and line.strip() and depth <= open_[-1][1]:
            start, _ = open_.pop()
            closed.append((start, i, tuple(s for s, _ in open_)))
        if "scf.for" in line:
            open_.append((i, depth))
    ends = {start: end for start, end, _ in closed}
    return lines, [Loop(start, end, tuple((s, ends[s]) for s in around)) for start, end, around in closed]


def dot_loops(ttgir: str) -> Iterator[tuple[list[str], Loop]]:
    """Innermost loops with a product in them."""
    lines, found = loops(ttgir)
    for loop in found:
        inner = [f for f in found if loop.first < f.first and f.last <= loop.last]
        if not inner and any(DOT.search(line) for line in lines[loop.first : loop.last]):
            yield lines, loop


def loads_before_their_acquire(ttgir: str) -> list[str]:
    """Asynchronous copies for a product that are issued above the poll that stands above its loop, or inside it.

    In a flattened loop the copies of the next tile stand above the polls of this one: those of tensors that nobody
    waits for may, and those that take where they load from out of a branch with the poll in it.
    """
    found: list[str] = []
    for lines, loop in dot_loops(ttgir):
        polls = [i for i in range(loop.around[0][0] if loop.around else 0, loop.last) if POLL.search(lines[i])]
        if polls:
            # What an outer loop loads behind its last loop of products belongs to its next turn, and so does what a poll
            # follows.
            behind = range(_last_of_products(lines, loop), loop.around[-1][1]) if loop.around else range(0)
            copies = [i for i in (*range(polls[-1]), *behind) if ASYNC_COPY.search(lines[i])]
            awaited = _awaited(lines)
            found += [lines[i].strip() for i in copies if not _may_be_early(lines, i, awaited)]
    return found


def _last_of_products(lines: list[str], loop: Loop) -> int:
    """The last line of the last loop of products that stands in the same loop as this one."""
    return max(other.last for _, other in dot_loops("\n".join(lines)) if other.around == loop.around)


def _awaited(lines: list[str]) -> set[str]:
    """Tensors whose flags are polled: of the pointers `%rows_flags`, `rows`."""
    polled = {
        name for line in lines if POLL.search(line) for name in re.findall(r"%[\w#]+", line.split("atomic_rmw")[1])
    }
    sums = [m for line in lines if (m := re.search(r"(%[\w#]+) = tt\.addptr (%\w+?)_flags", line))]
    direct = {name.removeprefix("%").removesuffix("_flags") for name in polled if name.endswith("_flags")}
    return direct | {m[2].removeprefix("%") for m in sums if m[1] in polled}


def _may_be_early(lines: list[str], at: int, awaited: set[str]) -> bool:
    by_pointer = re.search(r"async_copy_global_to_local (%[\w#]+),", lines[at])
    if by_pointer is not None:
        tensor = _parameter_of(lines, by_pointer[1])
        return tensor is not None and tensor not in awaited and _named(lines)
    copy = re.search(r"async_tma_copy_global_to_local (%[\w#]+)\[([^\]]*)\]", lines[at])
    if copy is None:
        return False
    if re.fullmatch(r"%\w+?_\d+(x\d+)+", copy[1]) and not any(copy[1].startswith(f"%{t}_") for t in awaited):
        return True
    return any(_polls_inside(lines, name.split("#")[0]) for name in [copy[1], *re.findall(r"%[\w#]+", copy[2])])


def _named(lines: list[str]) -> bool:
    """Whether all flags that are polled belong to tensors, by their names: then it is known what is waited for."""
    polled = [re.search(r"atomic_rmw [^%]*(%[\w#]+)", line) for line in lines if POLL.search(line)]
    found = [_parameter_of(lines, at[1]) for at in polled if at]
    return all(name is not None and name.endswith("_flags") for name in found)


def _parameter_of(lines: list[str], pointers: str) -> str | None:
    """The kernel's parameter that addresses are counted from; None where a branch or a loop chooses it."""
    name = pointers
    while (made := next((m for line in lines if (m := _made(line, name))), None)) is not None:
        if made["op"] not in ("tt.addptr", "tt.broadcast", "tt.expand_dims", "tt.splat", "ttg.convert_layout"):
            return None
        name = made["first"]
    head = next(line for line in lines if "tt.func public" in line)
    return name.removeprefix("%") if re.search(re.escape(name) + r": !tt\.ptr", head) else None


def _made(line: str, name: str) -> re.Match[str] | None:
    return re.match(rf"\s*{re.escape(name)} = (?P<op>[\w.]+) (?P<first>%\w+)", line)


def _polls_inside(lines: list[str], name: str) -> bool:
    """Whether a value is the result of an `scf.if` that polls."""
    defined = re.compile(re.escape(name) + r"(:\d+)? = scf\.if ")
    for first in (i for i, line in enumerate(lines) if defined.search(line)):
        depth = len(lines[first]) - len(lines[first].lstrip())
        end = next(
            i
            for i in range(first + 1, len(lines))
            if len(lines[i]) - len(lines[i].lstrip()) <= depth and "else" not in lines[i]
        )
        if any(POLL.search(line) for line in lines[first:end]):
            return True
    return False


def operands_loaded_directly(ttgir: str) -> list[str]:
    """Blocks that a product loop loads into registers, piece by piece, and waits for: no copy runs ahead of its turn."""
    found = (lines[i].strip() for lines, loop in dot_loops(ttgir) for i in range(loop.first, loop.last))
    return [line for line in found if re.search(r"\btt\.load\b.*tensor<\d+x\d+x!tt\.ptr", line)]


def loops_without_copies(ttgir: str) -> list[str]:
    """Product loops that load nothing asynchronously, or nothing ahead: pipelining is gone."""
    found: list[str] = []
    for lines, loop in dot_loops(ttgir):
        above = range(loop.around[-1][0] if loop.around else 0, loop.first)
        ahead = any(ASYNC_COPY.search(lines[i]) for i in above)
        if not ahead or not any(ASYNC_COPY.search(line) for line in lines[loop.first : loop.last]):
            found.append(lines[loop.first].strip())
    return found
