"""The patch panel with real devices, in network namespaces of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.cabling import Cage, Panel, canonical
from lab.shell import LabError, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


def namespace(stack: ExitStack) -> int:
    """Process id of something that lives in a new network namespace until the stack is closed."""
    process = subprocess.Popen(["unshare", "-n", "sleep", "120"])
    stack.callback(process.wait)
    stack.callback(process.kill)
    ours = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/ns/net").readlink() == ours:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    return process.pid


RECEIVE = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("10.20.8.12", 4791))
udp.settimeout(10)
print("ready", flush=True)
print(len(udp.recv(65535)))
"""
# 10 = IP_MTU_DISCOVER, 2 = IP_PMTUDISC_DO: never fragment.
SEND = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IP, 10, 2)
udp.sendto(bytes({size}), ("10.20.8.12", 4791))
"""


def jumbo(sender: int, receiver: int) -> None:
    """Send one unfragmented 9000-byte packet (28 bytes of it headers) and see it arrive whole."""
    command = ["nsenter", "-t", str(receiver), "-n", sys.executable, "-c", RECEIVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout and listening.stdout.readline() == "ready\n"
        inside(sender, sys.executable, "-c", SEND.format(size=8972))
        assert listening.stdout.read() == "8972\n"


def inside(pid: int, *command: str) -> str:
    return run(["nsenter", "-t", str(pid), "-n", *command])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_jumbo_frames_pass_a_cable_and_a_pulled_one_has_no_carrier(stack: ExitStack) -> None:
    nodes = {number: namespace(stack) for number in (1, 2, 3)}
    panel = Panel(namespace(stack), nodes)
    assert panel.ensure_cages() == 12 and panel.ensure_cages() == 0
    panel.plug(canonical(3))
    inside(nodes[1], "ip", "address", "add", "10.20.8.11/24", "dev", "enp1s0f0np0")
    inside(nodes[2], "ip", "address", "add", "10.20.8.12/24", "dev", "enp1s0f1np1")
    jumbo(nodes[1], nodes[2])
    with pytest.raises(LabError, match="Message too long"):
        inside(nodes[1], sys.executable, "-c", SEND.format(size=8973))
    panel.cut(Cage(2, "p1"))
    shown = inside(nodes[1], "ip", "-br", "address", "show", "dev", "enp1s0f0np0")
    assert "<NO-CARRIER,BROADCAST,MULTICAST,UP>" in inside(nodes[1], "ip", "-br", "link", "show", "dev", "enp1s0f0np0")
    assert "10.20.8.11/24" in shown
    assert panel.restore() and panel.links() == canonical(3)
    jumbo(nodes[1], nodes[2])


def test_a_node_with_a_new_namespace_gets_its_cages_while_the_old_one_lingers(stack: ExitStack) -> None:
    nodes = {number: namespace(stack) for number in (1, 2, 3)}
    holder = namespace(stack)
    panel = Panel(holder, nodes)
    panel.ensure_cages()
    panel.plug(canonical(3))
    again = Panel(holder, {**nodes, 3: namespace(stack)})
    assert again.ensure_cages() == 4
    again.plug(canonical(3))
    assert again.links() == canonical(3)
