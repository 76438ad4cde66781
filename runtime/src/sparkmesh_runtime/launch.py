"""`sparkmesh-rank SPEC`: validate the spec, prove the node, become vLLM.

Exit status: 2 the spec is wrong, 3 a check failed, 4 vLLM is not there. Otherwise vLLM's own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkmesh_runtime import preflight
from sparkmesh_runtime import spec as rank_spec
from sparkmesh_runtime.argv import vllm_argv, vllm_environment

EXIT_SPEC, EXIT_PREFLIGHT, EXIT_NO_VLLM = 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Console entry point; returns an exit status, or does not return when vLLM takes over the process."""
    parser = argparse.ArgumentParser(prog="sparkmesh-rank", description="Start one rank of a tensor-parallel group.")
    parser.add_argument("spec", type=Path, help="the rank spec, usually /etc/sparkmesh/rank.json")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="validate and prove the node, start nothing")
    mode.add_argument("--print", action="store_true", help="validate and print the vLLM command, start nothing")
    chosen = parser.parse_args(arguments)

    try:
        spec = rank_spec.load(chosen.spec)
    except rank_spec.SpecError as error:
        print(error, file=sys.stderr)
        return EXIT_SPEC
    argv = vllm_argv(spec)
    if chosen.print:
        print(shlex.join(argv))
        return 0

    print(
        f"rank {spec['rank']} of {spec['size']} on {spec['node']}, release {spec['release']}, "
        f"group {spec['group_hash']}",
        flush=True,
    )
    checks = preflight.run(spec, preflight.Node())
    for check in checks:
        print(check.line(), flush=True)
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        print(f"{len(failed)} check(s) failed, vLLM is not started", file=sys.stderr)
        return EXIT_PREFLIGHT
    if chosen.check:
        return 0

    print(f"exec {shlex.join(argv)}", flush=True)
    try:
        os.execvpe(argv[0], argv, vllm_environment(spec, os.environ))
    except OSError as error:
        print(
            f"{argv[0]}: {error.strerror}; wanted vLLM's command in PATH={os.environ.get('PATH', '')}; "
            "fix: run this inside the image that the release names",
            file=sys.stderr,
        )
    return EXIT_NO_VLLM


if __name__ == "__main__":
    sys.exit(main())
