"""The agent's program: `main.py [--port NAME]` as a guest's first process.

As an ordinary process, to develop and test it: `--no-init --socket-fd N [--cgroup DIR] --identity-root DIR
[--hooks DIR]`. It then serves on a connected socket until that is closed, sets up nothing, and writes identities below
DIR instead of into the system. Without a control group of its own it holds commands together by their sessions.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys

from torpor_guest import startup
from torpor_guest.agent import Agent, Place
from torpor_guest.cgroups import CgroupTree
from torpor_guest.hooks import ROOT
from torpor_guest.identity import FolderMachine, GuestMachine
from torpor_guest.reaper import become_subreaper


def main() -> None:
    """Serve for as long as the guest lives."""
    options = _parser().parse_args()
    place = _ordinary_place(options) if options.no_init else _guest_place(options)
    agent = Agent(place)
    # Everything that exists now lives as long as the agent; looking through it again would only dirty memory.
    gc.collect()
    gc.freeze()
    agent.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torpor-guest")
    parser.add_argument("--port", default="agent", help="name of the virtio-serial port")
    parser.add_argument("--no-init", action="store_true", help="be an ordinary process")
    parser.add_argument("--socket-fd", type=int, help="serve on this connected socket")
    parser.add_argument("--cgroup", help="an empty cgroup v2 folder for commands")
    parser.add_argument("--identity-root", help="write identities below this folder")
    parser.add_argument("--hooks", default=ROOT, help="the folder of the user's hooks")
    return parser


def _guest_place(options: argparse.Namespace) -> Place:
    startup.start_system()
    fd = os.open(startup.find_port(options.port), os.O_RDWR | os.O_CLOEXEC)
    tree = CgroupTree(startup.CGROUP_ROOT)
    return Place(fd, lasting=True, machine=GuestMachine(), tree=tree, hooks=options.hooks)


def _ordinary_place(options: argparse.Namespace) -> Place:
    if options.socket_fd is None or options.identity_root is None:
        sys.exit("--no-init needs --socket-fd and --identity-root")
    os.umask(0o022)
    os.set_inheritable(options.socket_fd, False)
    become_subreaper()
    tree = None if options.cgroup is None else CgroupTree(options.cgroup)
    machine = FolderMachine(options.identity_root)
    return Place(options.socket_fd, lasting=False, machine=machine, tree=tree, hooks=options.hooks)


if __name__ == "__main__":
    main()
