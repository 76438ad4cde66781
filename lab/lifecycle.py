"""Bring the lab up, take it down, say how it is, and prove that nothing is left."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab import baseimage, config, debootstrap, engine, host, nodeimage, nodes, server, tinymodel
from lab.cabling import Panel, canonical, describe
from lab.hub import Hub
from lab.shell import LabError, attempt, say, step


def _state_file() -> Path:
    return config.state_dir() / "lab.json"


def recorded() -> dict[str, Any]:
    """What the last ``up`` wrote about the lab; {} when there is none."""
    try:
        content = json.loads(_state_file().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def up(topology: str) -> None:
    """Make the lab be there as asked, from whatever is there now.

    A first ``up`` that fails takes down what it made; over a lab that stood before, it leaves that lab standing.
    """
    before = recorded()
    if before and before["repo"] != str(config.REPO):
        say(f"note: this lab was brought up from {before['repo']}; using it together from {config.REPO}")
    try:
        _up(topology, before)
    except BaseException:
        if not before:
            say("up failed: taking down what it made")
            try:
                down(purge=False)
            except LabError as error:
                # The reason why `up` failed is the one that matters; this one is said and not raised over it.
                say(f"taking down failed too: {error}")
        raise


def _up(topology: str, before: dict[str, Any]) -> None:
    wanted = config.nodes(topology)
    with step("machine", "root, capabilities, programs and disk space") as at:
        host.require_privileges()
        free = host.require_disk(config.state_dir(), 0 if before else config.disk_wanted_gib())
        installed = host.ensure_tools()
        at.note = f"{free:.0f} GiB free" + (f", installed {' '.join(installed)}" if installed else "")
    with step("engine", "Docker, to carry the nodes") as at:
        docker, at.note = engine.ensure()
    with step("images", "the node (systemd, sshd, Docker) and the serving image's base") as at:
        image, image_note, base, base_note = _images(docker)
        at.note = f"node {image_note}, base {base_note}"
    with step("network", f"{config.SUBNET} between this machine and the nodes") as at:
        at.note = nodes.ensure_network(docker)
    with step("model", f"{tinymodel.NAME}, random weights, served by the lab's hub") as at:
        made_in = tinymodel.make(server.hub_dir() / tinymodel.NAME)
        revision, files = Hub(server.hub_dir()).entries(tinymodel.NAME)
        # The inventory reads it: the hub names a revision by content, so it is not known before the model is made.
        (config.state_dir() / "hub-revision").write_text(f"{revision}\n")
        at.note = f"{len(files)} files in {made_in}, revision {revision[:12]}"
    with step("server", f"models, base image and wheels at {config.SERVER_URL}") as at:
        at.note = server.ensure(base)
    with step("nodes", f"{', '.join(node.name for node in wanted)}") as at:
        public_key = nodes.ensure_key()
        did = [nodes.ensure_panel(docker, image)]
        surplus = {node.name for node in config.nodes("ring")[len(wanted) :]}
        extra = [name for name in nodes.all_containers(docker) if name.removesuffix("-net") in surplus]
        nodes.remove(docker, extra)
        did += [f"removed {name}" for name in extra]
        for node in wanted:
            did += nodes.ensure_node(docker, node, image, public_key)
        at.note = ", ".join(text for text in did if text) or "all running"
    with step("cables", f"{topology}, two lanes a cable") as at:
        panel = Panel.of(docker, len(wanted))
        made = panel.ensure_cages()
        pulled, plugged = panel.plug(canonical(len(wanted)))
        parts = [f"made {made} lanes"] if made else []
        parts += [f"pulled {text}" for text in describe(pulled)] + [f"plugged {text}" for text in describe(plugged)]
        at.note = ", ".join(parts) or "all plugged"
    with step("ready", "systemd started, ssh login and sudo on every node") as at:
        at.note = "; ".join(nodes.await_ready(docker, wanted)) or "all running"
    record = {
        "repo": before.get("repo") or str(config.REPO),
        "topology": topology,
        "since": before.get("since") or time.time(),
        "image": image,
        "base": str(base),
    }
    _state_file().write_text(json.dumps(record, indent=1))


def _images(docker: engine.Engine) -> tuple[str, str, Path, str]:
    """Both images at once, since each mostly waits for one core: references and how they came to be."""
    with ThreadPoolExecutor(2) as pool:
        node_image = pool.submit(nodeimage.ensure, docker)
        base_image = pool.submit(baseimage.ensure)
        try:
            return *node_image.result(), *base_image.result()
        except BaseException:
            debootstrap.cancel()
            raise


def down(purge: bool) -> None:
    """Remove the lab. Raises LabError naming whatever is left afterwards."""
    with step("server", "models, base image and wheels") as at:
        at.note = "stopped" if server.stop() else "was not running"
    docker = engine.find()
    if docker is not None:
        with step("nodes", "containers with their volumes, and their network") as at:
            names = nodes.all_containers(docker)
            nodes.remove(docker, names)
            if docker.attempt("network", "inspect", config.NETWORK).returncode == 0:
                docker.docker("network", "rm", config.NETWORK)
            at.note = f"removed {len(names)} containers"
            if purge and not docker.own:
                images = docker.docker("images", "--quiet", nodeimage.REPOSITORY).split()
                if images:
                    docker.docker("rmi", "--force", *sorted(set(images)))
    with step("engine", "the lab's own Docker") as at:
        at.note = "stopped" if engine.processes() else "was not running"
        engine.stop()
        shutil.rmtree(engine.folder() / "exec", ignore_errors=True)
    _state_file().unlink(missing_ok=True)
    nodes.known_hosts().unlink(missing_ok=True)
    if purge:
        with step("caches", "images, wheels, keys and the engine's data") as at:
            shutil.rmtree(config.cache_dir(), ignore_errors=True)
            keep = config.state_dir() / "lock"
            for path in [entry for entry in config.state_dir().iterdir() if entry != keep]:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            at.note = f"removed {config.cache_dir()} and all under {config.state_dir()}"
    with step("check", "no process, container, interface, mount or namespace is left") as at:
        left = leftovers()
        if left:
            raise LabError("the lab is down, but these are left:\n    " + "\n    ".join(left), "end or remove them")
        at.note = "nothing left"


def leftovers() -> list[str]:
    """Everything of the lab that is alive on this machine, in words; [] when nothing is."""
    left = [f"process {pid} ({name}) of the lab's engine" for pid, name in engine.processes().items()]
    pid = server.running()
    if pid is not None:
        left.append(f"process {pid}, the lab server")
    docker = engine.find()
    if docker is not None:
        left += [f"container {name}" for name in nodes.all_containers(docker)]
    links = json.loads(attempt(["ip", "-json", "link", "show"]).stdout or "[]")
    left += [f"interface {entry['ifname']}" for entry in links if _is_ours(entry)]
    state = str(config.state_dir())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4]
        if point.startswith(f"{state}/"):
            left.append(f"mount {point}")
    if (Path("/sys/fs/cgroup/unified") / engine.CGROUP).exists() or (Path("/sys/fs/cgroup") / engine.CGROUP).exists():
        left.append(f"control group {engine.CGROUP}")
    return left


def _is_ours(entry: dict[str, Any]) -> bool:
    return bool(entry.get("ifname") == config.BRIDGE or entry.get("master") == config.BRIDGE)


def status() -> dict[str, Any]:
    """The lab as it is now: ``{"up", "topology", "repo", "engine", "server", "nodes", "cables", "missing_cables"}``."""
    record = recorded()
    docker = engine.find()
    found: dict[str, Any] = {
        "up": bool(record),
        "topology": record.get("topology"),
        "repo": record.get("repo"),
        "state_dir": str(config.state_dir()),
        "server": config.SERVER_URL if server.running() else None,
        "engine": docker.host if docker else None,
        "nodes": [],
        "cables": None,
        "missing_cables": None,
    }
    if docker is None or not record:
        return found
    wanted = config.nodes(record["topology"])
    seen = nodes.inspect(docker, [node.name for node in wanted])
    for node in wanted:
        state: Any = seen.get(node.name, {}).get("State", {"Status": "absent"})
        found["nodes"].append({"name": node.name, "address": node.address, "state": state["Status"]})
    try:
        present = Panel.of(docker, len(wanted)).links()
    except LabError:
        return found
    found["cables"] = describe(present)
    found["missing_cables"] = describe(canonical(len(wanted)) - present)
    return found


def panel() -> Panel:
    """The patch panel of the lab that is up. Raises LabError when none is."""
    record, docker = recorded(), engine.find()
    if not record or docker is None:
        raise LabError("no lab is up", "python -m lab up")
    return Panel.of(docker, len(config.nodes(record["topology"])))
