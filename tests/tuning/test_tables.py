"""Tables of schedules: there and back, nearest, and the shipped one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilelink import TilelinkError, copy_engine, fused, library, ops, sms
from tilelink.explore.cases import Case
from tilelink.ir.schedule import Placement, Schedule
from tilelink.ir.topology import Device, Topology
from tilelink.pipeline.choosing import measured
from tilelink.tuning.records import record_of, schedule_of
from tilelink.tuning.tables import DiskCache, Entry, Problem, merge, nearest, read, shipped

PROBLEM = Problem("op", "M K -> M K", "GPU", "peer", 4, ("bf16",), (("K", 64), ("M", 1024)))
ORDERS = st.sampled_from(["row", ("ring", "group 8"), "ring+1"])
SIZES = st.sampled_from([16, 64, 256])
PLACEMENTS = st.one_of(
    st.builds(lambda n, m, o, w: sms(n, M=m, order=o, num_warps=w), st.sampled_from([None, 4]), SIZES, ORDERS, SIZES),
    st.builds(lambda m, p, n: copy_engine(M=m, push=p, streams=n), SIZES, st.sampled_from([None, True]), st.just(2)),
    st.builds(fused, st.just("matmul")),
    st.builds(lambda m: library("torch.mm", M=m), SIZES),
    st.builds(
        lambda n, o: library("torch.mm", M=64, fallback=sms(n, M=64, order=o)), st.sampled_from([None, 4]), ORDERS
    ),
)


@given(
    st.dictionaries(st.sampled_from(["a", "b.c"]), PLACEMENTS),
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(["x", "y"]), SIZES),
    st.booleans(),
)
def test_a_schedule_is_what_its_record_says(
    placements: dict[str, Placement], slots: int, channels: dict[str, int], unfused: bool
) -> None:
    made = Schedule(
        entries=tuple(sorted(placements.items())), slots=slots, channels=tuple(sorted(channels.items())),
        unfused=unfused,
    )  # fmt: skip
    record = record_of(made)
    assert record is not None
    assert schedule_of(json.loads(json.dumps(record))) == made


def test_a_function_is_no_data() -> None:
    by_key = sms(order=lambda tile, rank, ranks: tile)
    assert record_of(Schedule().merged({"a": by_key})) is None
    assert record_of(Schedule().merged({"a": library("torch.mm", fallback=by_key)})) is None


def entry(m: int, schedule: Schedule = Schedule(), **more: object) -> Entry:
    problem = dataclasses.replace(PROBLEM, sizes=(("K", 64), ("M", m)), **more)  # type: ignore[arg-type]
    return Entry(problem, schedule, 1.0, 2.0, "today")


def test_the_nearest_is_taken_and_none_that_is_far() -> None:
    table = [entry(256), entry(8192), entry(1000, gpu="another"), entry(1000, ranks=8)]
    found = nearest(table, PROBLEM)
    assert found is not None
    assert dict(found.problem.sizes)["M"] == 256  # two octaves; 8192 is three away
    assert nearest(table, entry(40).problem) is None
    assert nearest(table[2:], PROBLEM) is None


def test_the_bucket_decides_before_the_distance() -> None:
    exact = entry(1024, Schedule(slots=3))
    found = nearest([entry(1030), exact], PROBLEM)
    assert found == exact


def test_the_disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))
    cache = DiskCache("1")
    assert cache.load(PROBLEM) is None
    path = cache.save(entry(1024))
    assert path is not None
    assert path.parent == tmp_path / "tuned"
    assert cache.load(PROBLEM) == entry(1024)
    assert cache.load(entry(1030).problem) == entry(1024)  # the same bucket
    assert cache.load(entry(2048).problem) is None
    assert DiskCache("2").load(PROBLEM) is None


def test_a_table_is_merged_bucket_by_bucket(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    merge(path, [entry(1024), entry(2048)])
    merge(path, [entry(1024, Schedule(slots=3))])
    assert {dict(e.problem.sizes)["M"]: e.schedule.slots for e in read(path)} == {2048: 2, 1024: 3}


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"entries": [{}]}')
    with pytest.raises(TilelinkError, match="TL461"):
        read(tmp_path / "t.json")


def test_the_shipped_table_is_for_operators_that_there_are() -> None:
    for e in shipped():
        assert e.problem.operator in ops.__all__
        assert e.problem.signature == str(getattr(ops, e.problem.operator).signature)
        assert e.measured
        assert record_of(e.schedule) is not None


def test_what_is_shipped_is_taken_where_it_was_measured_and_can_be_planned() -> None:
    """On as many ranks, of such a GPU; and what was measured there was no slower than the unfused form."""
    assert shipped()
    for e in shipped():
        for plain in (True, False):
            found = measured(e.problem, plain)
            assert (found.schedule if found is not None else None) == (
                e.schedule if plain or not e.schedule.unfused else None
            )
        assert measured(dataclasses.replace(e.problem, ranks=2 * e.problem.ranks), True) is None
        assert measured(dataclasses.replace(e.problem, gpu="NVIDIA A100-SXM4-80GB"), True) is None
        assert e.ms_unfused is not None
        assert e.ms <= e.ms_unfused
        if not e.schedule.unfused:
            topology = Topology(e.problem.ranks, e.problem.backend, device=Device(e.problem.gpu, 132, capability=90))
            operator = getattr(ops, e.problem.operator).with_schedule(e.schedule)
            assert Case(operator, e.problem.sizes, e.problem.ranks).compiled(topology).verdict
