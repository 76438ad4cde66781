"""The lab's command line: ``python -m lab up | down | status | cable | server``."""

import argparse
import json
import shlex
import signal
import sys
import time
from pathlib import Path

from lab import config, lifecycle, lock, server
from lab.cabling import LANES, describe, parse_cage
from lab.shell import LabError, say


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="Stand-in DGX Sparks on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="bring the lab up, or heal it")
    up.add_argument("--topology", choices=sorted(config.SIZES), help="default: what is up, else triangle")
    down = verbs.add_parser("down", help="take the lab down and prove that nothing is left")
    down.add_argument("--purge", action="store_true", help="remove caches and keys as well")
    status = verbs.add_parser("status", help="say how the lab is")
    status.add_argument("--json", action="store_true")
    cable = verbs.add_parser("cable", help="pull, plug and move cables while the nodes run")
    acts = cable.add_subparsers(dest="act", required=True)
    acts.add_parser("list", help="which cage is cabled to which")
    cut = acts.add_parser("cut", help="pull the cable in a cage")
    cut.add_argument("cage", help="e.g. spark-1:p0")
    cut.add_argument("--lane", type=int, choices=LANES, help="only this lane")
    restore = acts.add_parser("restore", help="plug the cable of a cage, or all cables, where they belong")
    restore.add_argument("cage", nargs="?")
    for act, words in (("move", "take a plug out of one cage and put it into another"), ("swap", "exchange two plugs")):
        both = acts.add_parser(act, help=words)
        both.add_argument("cage")
        both.add_argument("other")
    serve = verbs.add_parser("server", help="run the lab server in the foreground (`up` starts it by itself)")
    serve.add_argument("--bind", default=config.HOST_ADDRESS)
    serve.add_argument("--port", type=int, default=config.SERVER_PORT)
    serve.add_argument("--base", type=Path, required=True, help="OCI layout of the base image")
    serve.add_argument("--hub", type=Path, default=None, help="folder of models")
    serve.add_argument("--wheels", type=Path, default=None, help="folder of wheels")
    return parser


def _cable(arguments: argparse.Namespace) -> None:
    panel = lifecycle.panel()
    cage = parse_cage(arguments.cage, panel.count) if getattr(arguments, "cage", None) else None
    match arguments.act:
        case "cut" if cage:
            lanes = LANES if arguments.lane is None else (arguments.lane,)
            say(f"pulled {', '.join(describe(panel.cut(cage, lanes)))}")
        case "restore":
            say(f"plugged {', '.join(describe(panel.restore(cage))) or 'nothing: all is where it belongs'}")
        case "move" if cage:
            say(f"plugged {', '.join(describe(panel.move(cage, parse_cage(arguments.other, panel.count))))}")
        case "swap" if cage:
            say(f"plugged {', '.join(describe(panel.swap(cage, parse_cage(arguments.other, panel.count))))}")
        case _:
            for text in describe(panel.links()):
                say(text)


def _status(as_json: bool) -> None:
    found = lifecycle.status()
    if as_json:
        say(json.dumps(found, indent=1))
        return
    say(f"lab      {'up, ' + str(found['topology']) + ', from ' + str(found['repo']) if found['up'] else 'down'}")
    say(f"engine   {found['engine'] or 'none'}")
    say(f"server   {found['server'] or 'not running'}")
    for node in found["nodes"]:
        say(f"node     {node['name']}  {node['address']}  {node['state']}")
    for text in found["cables"] or []:
        say(f"cable    {text}")
    for text in found["missing_cables"] or []:
        say(f"missing  {text}")


def _dispatch(arguments: argparse.Namespace, words: str) -> None:
    match arguments.verb:
        case "status":
            _status(arguments.json)
        case "server":
            hub = arguments.hub or server.hub_dir()
            wheels = arguments.wheels or server.wheels_dir()
            with server.serve(arguments.bind, arguments.port, hub, arguments.base, wheels) as running:
                running.serve_forever()
        case verb:
            lock_file = config.state_dir() / "lock"
            with lock.held(lock_file, words, config.REPO):
                if verb == "up":
                    lifecycle.up(arguments.topology or lifecycle.recorded().get("topology") or "triangle")
                elif verb == "down":
                    lifecycle.down(arguments.purge)
                else:
                    _cable(arguments)


def main(words: list[str]) -> int:
    """Run one command; 0 when it did what it says, 1 when it could not."""
    arguments = _parser().parse_args(words)
    start = time.monotonic()
    # A terminated command cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _dispatch(arguments, f"python -m lab {shlex.join(words)}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130
    if arguments.verb in ("up", "down"):
        say(f"lab is {arguments.verb} after {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
