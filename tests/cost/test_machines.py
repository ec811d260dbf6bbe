"""Machines in files: the ones that come with the package, a user's own, and what a file may not say."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.cost.test_model import lowered
from tests.selection import table
from tilelink import TilelinkError, ops
from tilelink.cost import H200, MACHINES, Machine, predict
from tilelink.cost.machine import FIGURES, parse

OWN = 'name = "mine"\nlike = "8xH200"\n[figures]\nlink = [1.0e5, "the manual"]\n'


@table("name", MACHINES)
def test_every_figure_of_a_machine_has_a_source(name: str) -> None:
    machine = Machine.load(name)
    assert machine.name == name
    assert {figure for figure, _ in machine.sources} == {*FIGURES}
    assert all(said for _, said in machine.sources)
    assert machine.flops <= machine.flops_limit
    assert machine.memory <= machine.memory_limit
    assert machine.peer_link <= machine.link <= machine.link_limit


def test_those_that_were_asked_for_are_there() -> None:
    assert {*MACHINES} == {"8xH100", "8xH200", "8xB200", "8xA100", "8xMI300X", "2x8xH100-IB"}
    assert Machine.load("8xH200") == H200
    assert (Machine.load("2x8xH100-IB").gpus, Machine.load("2x8xH100-IB").nodes) == (8, 2)


def test_figures_of_a_file_of_ones_own_are_taken_and_others_are_assumed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    machine = Machine.load(path)
    changed = [f.name for f in fields(Machine) if getattr(machine, f.name) != getattr(H200, f.name)]
    assert changed == ["name", "link", "sources"]
    sources = dict(machine.sources)
    assert sources["link"] == "the manual"
    assert sources["copy"].startswith("assumed, as of 8xH200: ")
    assert predict(lowered(ops.ag_gemm), machine).us > predict(lowered(ops.ag_gemm)).us


@table(
    "text, said",
    [
        ("name = ", "is no TOML"),
        (OWN + "lnik = [1.0, 'x']\n", "says `lnik`, which no machine has"),
        (OWN.replace("name", "nmae"), "says `nmae`, which no machine has"),
        (OWN.replace(', "the manual"', ""), "has `link` without a source"),
        (OWN.replace("1.0e5", "-1.0"), "has -1.0 for `link`, which is no figure"),
        (OWN.replace("1.0e5", "true"), "has True for `link`, which is no figure"),
        (OWN.replace('like = "8xH200"\n', ""), "says nothing of `gpu`"),
    ],
)
def test_a_file_that_describes_no_machine_is_refused(text: str, said: str) -> None:
    with pytest.raises(TilelinkError, match="TL732") as found:
        parse(text)
    assert said in found.value.message


@table("name", ["8xH300", "nowhere.toml"])
def test_a_machine_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(TilelinkError, match="TL731") as found:
        Machine.load(name)
    assert "8xH200" in str(found.value)


def test_the_network_is_slower_than_the_links_of_a_node() -> None:
    """Two ranks of one node, and of two."""
    apart = replace(H200, gpus=1, nodes=2)
    found = lowered(ops.ag_gemm, 2)
    assert predict(found, apart).us > predict(found).us
    assert float(apart.latency(0, 1)) == apart.network_signal
    assert float(H200.latency(0, 1)) == H200.remote_signal
    assert float(apart.latency(1, 1)) == H200.signal
