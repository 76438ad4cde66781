"""Cables: which ones there are, and what pulling, moving and swapping does to them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.cabling import Cage, Link, Panel, canonical, describe, link, links_of, parse_cage, replaced
from lab.shell import LabError


class FakePanel(Panel):
    """A panel whose devices live in memory and obey the few `ip` commands that a panel gives."""

    def __init__(self, count: int) -> None:
        super().__init__(1, dict.fromkeys(range(1, count + 1), 1))
        cages = [Cage(node, cage) for node in range(1, count + 1) for cage in ("p0", "p1")]
        self.state: dict[str, dict[str, object]] = {
            cage.end(lane): {"ifname": cage.end(lane), "up": False} for cage in cages for lane in (0, 1)
        }

    def _devices(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(json.dumps(list(self.state.values())))
        return found

    def _batch(self, commands: list[str]) -> None:
        for command in commands:
            _, verb, name, *rest = command.split()
            if verb == "add":
                assert name not in self.state, f"{name} is there already"
                self.state[name] = {"ifname": name, "up": False}
            elif verb == "del":
                del self.state[name]
                assert not [end for end in self.state.values() if end.get("master") == name], "plugs still in it"
            elif rest[0] == "master":
                assert rest[1] in self.state and "master" not in self.state[name]
                self.state[name]["master"] = rest[1]
            elif rest[0] == "nomaster":
                del self.state[name]["master"]
            else:
                self.state[name]["up"] = rest[0] == "up"

    def lit(self) -> set[str]:
        return {name for name, device in self.state.items() if device["up"] and "master" in device}


@pytest.fixture
def triangle() -> FakePanel:
    panel = FakePanel(3)
    panel.plug(canonical(3))
    return panel


def test_triangle_has_three_cables_of_two_lanes() -> None:
    assert describe(canonical(3)) == [
        "spark-1:p0--spark-2:p1",
        "spark-1:p1--spark-3:p0",
        "spark-2:p0--spark-3:p1",
    ]
    assert len(canonical(3)) == 6


def test_ring_keeps_two_triangle_cables_and_recables_the_closing_one() -> None:
    assert describe(canonical(3) - canonical(4)) == ["spark-1:p1--spark-3:p0"]
    assert describe(canonical(4) - canonical(3)) == ["spark-1:p1--spark-4:p0", "spark-3:p0--spark-4:p1"]


@pytest.mark.parametrize("count", [3, 4])
def test_every_cage_is_used_once(count: int) -> None:
    ends = [end for entry in canonical(count) for end in entry.ends]
    assert len(ends) == len(set(ends)) == 4 * count


def test_names_are_those_of_a_spark_and_fit_the_kernel() -> None:
    names = [Cage(1, cage).interface(lane) for lane in (0, 1) for cage in ("p0", "p1")]
    assert names == ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"]
    longest = [entry.bridge for entry in canonical(4)] + [end for entry in canonical(4) for end in entry.ends] + names
    assert max(len(name) for name in longest) <= 15


def test_addresses_are_unicast_local_and_all_different() -> None:
    macs = {Cage(n, cage).mac(lane) for n in range(1, 5) for cage in ("p0", "p1") for lane in (0, 1)}
    assert len(macs) == 16
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)


@pytest.mark.parametrize(
    "text", ["spark-4:p0", "spark-0:p0", "spark-1:p2", "spark-1", "spark-1:p0 ", "", "spark-11:p0"]
)
def test_unknown_cages_are_refused_by_name(text: str) -> None:
    with pytest.raises(LabError, match=r"wanted spark-1\.\.spark-3"):
        parse_cage(text, 3)


def test_a_bridge_with_one_end_is_no_link() -> None:
    assert links_of([{"ifname": "s1p0l0", "master": "x"}, {"ifname": "eth0", "master": "x"}, {"ifname": "lo"}]) == set()


def test_cut_darkens_both_ends_and_nothing_else(triangle: FakePanel) -> None:
    before = triangle.lit()
    assert describe(triangle.cut(Cage(2, "p1"))) == ["spark-1:p0--spark-2:p1"]
    assert before - triangle.lit() == {"s1p0l0", "s1p0l1", "s2p1l0", "s2p1l1"}
    with pytest.raises(LabError, match="no cable is plugged into spark-1:p0"):
        triangle.cut(Cage(1, "p0"))


def test_one_lane_can_be_cut(triangle: FakePanel) -> None:
    triangle.cut(Cage(1, "p0"), [0])
    assert "spark-1:p0--spark-2:p1 (only lane 1)" in describe(triangle.links())
    assert describe(triangle.restore(Cage(1, "p0"))) == ["spark-1:p0--spark-2:p1 (only lane 0)"]
    assert triangle.links() == canonical(3)


def test_move_needs_an_empty_cage(triangle: FakePanel) -> None:
    with pytest.raises(LabError, match="spark-2:p0 is taken by spark-2:p0--spark-3:p1"):
        triangle.move(Cage(1, "p0"), Cage(2, "p0"))
    triangle.cut(Cage(2, "p0"))
    assert describe(triangle.move(Cage(1, "p0"), Cage(2, "p0"))) == ["spark-2:p0--spark-2:p1"]
    assert "s1p0l0" not in triangle.lit()


def test_swap_exchanges_two_plugs_and_back(triangle: FakePanel) -> None:
    triangle.swap(Cage(1, "p0"), Cage(1, "p1"))
    assert describe(triangle.links()) == [
        "spark-1:p0--spark-3:p0",
        "spark-1:p1--spark-2:p1",
        "spark-2:p0--spark-3:p1",
    ]
    triangle.swap(Cage(1, "p1"), Cage(1, "p0"))
    assert triangle.links() == canonical(3)


def test_swapping_both_ends_of_one_cable_is_refused(triangle: FakePanel) -> None:
    with pytest.raises(LabError, match="two ends of one cable"):
        triangle.swap(Cage(1, "p0"), Cage(2, "p1"))


def test_restore_names_what_is_in_the_way(triangle: FakePanel) -> None:
    triangle.swap(Cage(1, "p0"), Cage(1, "p1"))
    with pytest.raises(LabError, match=r"spark-1:p0--spark-2:p1 cannot be plugged: spark-1:p[01]--spark-[23]:p[01]"):
        triangle.restore(Cage(1, "p0"))
    triangle.restore()
    assert triangle.links() == canonical(3)


acts = st.tuples(
    st.sampled_from(["cut", "restore", "move", "swap"]),
    st.builds(Cage, st.integers(1, 4), st.sampled_from(["p0", "p1"])),
    st.builds(Cage, st.integers(1, 4), st.sampled_from(["p0", "p1"])),
)


@given(st.lists(acts, max_size=12))
def test_whatever_hands_do_every_end_has_one_plug_and_up_heals(steps: list[tuple[str, Cage, Cage]]) -> None:
    panel = FakePanel(4)
    panel.plug(canonical(4))
    for act, one, other in steps:
        before = panel.links()
        try:
            if act in ("cut", "restore"):
                getattr(panel, act)(one)
            elif one != other:
                getattr(panel, act)(one, other)
        except LabError:
            assert panel.links() == before
        ends = [end for entry in panel.links() for end in entry.ends]
        assert len(ends) == len(set(ends))
        assert panel.lit() - {entry.bridge for entry in panel.links()} == set(ends)
    panel.plug(canonical(4))
    assert panel.links() == canonical(4)


def test_replaced_keeps_the_other_end_and_the_lane() -> None:
    before = {link(Cage(3, "p0"), Cage(1, "p1"), 1)}
    assert replaced(before, Cage(3, "p0"), Cage(2, "p0")) == {Link(Cage(1, "p1"), Cage(2, "p0"), 1)}
