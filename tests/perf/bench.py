"""Measures what a user of one machine sees: create, exec, files, and what the server holds while nothing happens.

    python tests/perf/bench.py [--home DIR] [--rounds N] [--megabytes N] [--json]

Everything is measured on the client's side, through the SDK, against a server of its own. The bare start of a VMM, from
process start to its monitor's answer that the saved guest is loaded, is measured in the same run beside create.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from running_server import RunningServer, home_sharing_templates, serving
from torpor import Client, Sandbox
from torpor.host.bake import build_template
from torpor.host.choice import DriverChoice
from torpor.host.config import HostConfig
from torpor.host.hardware import hardware_of
from torpor.host.recover import machines_of
from torpor.kit.files import clone
from torpor.model.ids import TemplateName
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.templates import DISK, MEMORY, STATE, Templates
from torpor.vmm.driver import Place, Saved

MIB = 1024 * 1024


@dataclass
class Series:
    """Durations of one thing, in milliseconds."""

    name: str
    values: list[float] = field(default_factory=list)

    def take(self, action: Callable[[], object]) -> None:
        """Do it once and note how long it took."""
        started = time.perf_counter()
        action()
        self.values.append((time.perf_counter() - started) * 1000)

    def percentile(self, share: float) -> float:
        """Return the value that `share` of all do not exceed (nearest rank)."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]

    def summary(self) -> dict[str, float | int]:
        """Return n, p50, p90 and p99 in milliseconds."""
        figures = {f"p{round(share * 100)}_ms": round(self.percentile(share), 1) for share in (0.5, 0.9, 0.99)}
        return {"n": len(self.values), **figures}


def resident_mib(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def growth_of(pids: dict[str, int]) -> Iterator[dict[str, float]]:
    """Watch processes; afterwards the yielded dict has by how many MiB each grew at its largest."""
    before = {name: resident_mib(pid) for name, pid in pids.items()}
    peak, done = dict(before), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for name, pid in pids.items():
                peak[name] = max(peak[name], resident_mib(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    grown: dict[str, float] = {}
    try:
        yield grown
    finally:
        done.set()
        watcher.join()
        grown.update({name: round(peak[name] - before[name], 1) for name in pids})


async def bare_start(home: Path, template: str, rounds: int) -> Series:
    """Time a VMM from process start to its monitor saying that the saved guest is loaded."""
    layout, series = Layout(home.resolve()), Series("bare VMM start")
    driver = await DriverChoice(HostConfig.from_environment(home), layout)()
    images, templates = Images(layout), Templates(layout)
    baked, snapshot = templates.open(TemplateName(template)), templates.path(TemplateName(template))
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            place = Place("bench", Path(folder))
            clone(snapshot / DISK, place.folder / DISK)
            hardware = hardware_of(images, baked, place.folder / DISK)
            started = time.perf_counter()
            machine = await driver.load(place, hardware, Saved(snapshot / MEMORY, snapshot / STATE))
            series.values.append((time.perf_counter() - started) * 1000)
            await machine.aclose()
    return series


def creates_and_execs(client: Client, template: str, rounds: int) -> list[Series]:
    """Time create, the first command, and delete."""
    create, first, delete = (Series(name) for name in ("create", "first exec true", "delete"))
    for _ in range(rounds):
        held: list[Sandbox] = []
        create.take(lambda: held.append(Sandbox.create(template, client=client, ttl_seconds=600)))  # noqa: B023
        sandbox = held[0]
        first.take(lambda: sandbox.exec("true"))  # noqa: B023
        delete.take(sandbox.delete)
    return [create, first, delete]


def many_execs(sandbox: Sandbox, rounds: int) -> Series:
    """Time one command after another on one sandbox."""
    series = Series("exec true (warm)")
    for _ in range(5):
        sandbox.exec("true")
    for _ in range(rounds):
        series.take(lambda: sandbox.exec("true"))
    return series


def transfers(server: RunningServer, sandbox: Sandbox, megabytes: int) -> dict[str, object]:
    """Send a file up and back; return MB/s each way and by how much each process grew."""
    machines = machines_of(Layout(server.home.resolve()))
    (vmm,) = (pid for pid in machines if any(f"/{sandbox.id}/" in path for path in open_files(pid)))
    pids = {"client": os.getpid(), "server": server.process.pid, "vmm": vmm}
    figures: dict[str, object] = {"megabytes": megabytes, "vmm_mib_before": round(resident_mib(vmm), 1)}
    with tempfile.TemporaryDirectory() as folder:
        there, back = Path(folder) / "there", Path(folder) / "back"
        block = os.urandom(1_000_000)
        with there.open("wb") as file:
            for _ in range(megabytes):
                file.write(block)
        agent_before = agent_kib(sandbox)
        actions: dict[str, Callable[[], object]] = {
            "upload": lambda: sandbox.filesystem.upload(there, "/work/blob"),
            "download": lambda: sandbox.filesystem.download("/work/blob", back),
        }
        for name, action in actions.items():
            with growth_of(pids) as grown:
                started = time.perf_counter()
                action()
                seconds = time.perf_counter() - started
            figures[name] = {"mb_per_s": round(megabytes / seconds, 1), "growth_mib": grown}
        figures["same_bytes"] = digest(there) == digest(back)
        figures["guest_agent_growth_mib"] = round((agent_kib(sandbox) - agent_before) / 1024, 1)
    return figures


def open_files(pid: int) -> list[str]:
    """Return the paths of what a process has open."""
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def agent_kib(sandbox: Sandbox) -> int:
    """Return the guest agent's largest resident memory so far, in KiB."""
    return int(sandbox.exec("sed -n 's/^VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/1/status").stdout)


def digest(path: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run everything and return the figures."""
    asyncio.run(build_template(options.home, options.template))
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        own = home_sharing_templates(options.home, Path(folder) / "home")
        floor = asyncio.run(bare_start(own, options.template, options.rounds))
        with serving(own) as server, server.client() as client:
            idle = resident_mib(server.process.pid)
            Sandbox.create(options.template, client=client).delete()
            series = [floor, *creates_and_execs(client, options.template, options.rounds)]
            with Sandbox.create(options.template, client=client) as sandbox:
                series.append(many_execs(sandbox, options.rounds))
                moved = transfers(server, sandbox, options.megabytes)
            baked = next(each for each in client.templates.list() if each.name == options.template)
            later = resident_mib(server.process.pid)
    return {
        "machine": machine(),
        "template": {"name": options.template, "memory_mb": baked.memory_mb, "accelerator": baked.accelerator},
        "cold_boot_ms": baked.cold_boot_ms,
        "series": {each.name: each.summary() for each in series},
        "files": moved,
        "server_mib": {"idle": round(idle, 1), "after": round(later, 1)},
    }


def machine() -> dict[str, object]:
    """Return what the figures were made on."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def show(figures: dict[str, object]) -> None:
    """Print the figures for a person."""
    print(f"machine   {figures['machine']}\ntemplate  {figures['template']}, cold boot {figures['cold_boot_ms']} ms\n")
    print(f"{'':28}{'n':>5}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}")
    series = figures["series"]
    assert isinstance(series, dict)
    for name, values in series.items():
        print(f"{name:28}{values['n']:>5}{values['p50_ms']:>10}{values['p90_ms']:>10}{values['p99_ms']:>10}")
    print(f"\nfiles     {figures['files']}\nserver    {figures['server_mib']} MiB resident")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(os.environ.get("TORPOR_TEST_HOME") or Path(__file__).resolve().parents[2] / "build" / "test-home")
    parser.add_argument("--home", type=Path, default=default, help="data directory with the templates")
    parser.add_argument("--template", default="base")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
