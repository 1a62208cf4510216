"""A whole host agent on a fake VMM: real files, real protocol, no virtual machine."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from torpor.guest.client import Guest, connect
from torpor.host.admission import Admission
from torpor.host.api import host_app
from torpor.host.flow.ask import guest_of
from torpor.host.flow.boot import Rehearsal, boot_and_freeze
from torpor.host.host import Host
from torpor.host.live import Live
from torpor.host.prepared import Preparer
from torpor.host.recover import recover
from torpor.host.spares import Spares
from torpor.model.capacity import Limits
from torpor.model.ids import SandboxId, TemplateName
from torpor.model.template import Template
from torpor.network.addresses import GUEST_MAC
from torpor.network.fake import FakeNetwork
from torpor.storage.images import Images
from torpor.storage.layout import Layout
from torpor.storage.named_volumes import NamedVolumes
from torpor.storage.snapshots import Snapshots
from torpor.storage.templates import Templates
from torpor.testing.fake_guest import FakeGuest
from torpor.testing.vmm import fake_driver
from torpor.vmm.fake import FakeDriver, Left
from torpor.wire.memory import MemoryTransport

BASE = TemplateName("base")


@dataclass
class HostRig:
    """A host, its driver, and the guests its machines get: the next one from `guests` if there is one, else a good
    one. `survivors`: machines that an earlier host agent has left. `connect_s`: how long a guest may take to answer.
    """

    layout: Layout
    guests: list[FakeGuest] = field(default_factory=list)
    keep_s: float = 0
    survivors: list[Left] = field(default_factory=list)
    connect_s: float = 5
    limits: Limits = field(default_factory=Limits)
    network: FakeNetwork = field(default_factory=FakeNetwork)
    driver: FakeDriver = field(init=False)
    host: Host = field(init=False)
    images: Images = field(init=False)
    preparer: Preparer = field(init=False)

    def __post_init__(self) -> None:
        self.layout.make()
        self.driver = fake_driver(lambda: self.guests.pop(0) if self.guests else FakeGuest())
        self.driver.survivors += self.survivors

        async def choose() -> FakeDriver:
            return self.driver

        async def connect_guest(sock: socket.socket) -> Guest:  # no method: what a host shows of itself is no rig
            return await connect(sock, timeout_s=self.connect_s)

        self.images = Images(self.layout)
        self.preparer = Preparer(self.layout, self.images, choose, connect_guest, self.network)
        live = Live()
        volumes = NamedVolumes(self.layout)
        admission = Admission(live, self.limits, kept=lambda: volumes.promised_bytes)
        self.host = Host(
            layout=self.layout,
            templates=Templates(self.layout),
            snapshots=Snapshots(self.layout),
            preparer=self.preparer,
            spares=Spares(self.preparer, admission, keep_s=self.keep_s),
            connect_guest=connect_guest,
            live=live,
            admission=admission,
            volumes=volumes,
        )

    async def recover(self) -> Live:
        """Take over what is there, as a host agent does at its start."""
        live = await recover(self.layout, self.host.snapshots, self.driver, self.network)
        volumes = self.host.volumes
        admission = Admission(live, self.limits, kept=lambda: volumes.promised_bytes)
        spares = Spares(self.preparer, admission, keep_s=self.keep_s)
        self.host = dataclasses.replace(self.host, live=live, admission=admission, spares=spares)
        return live

    async def killed(self, *, machines_die: bool = False) -> HostRig:
        """Return the host agent that starts after this one was killed; its machines run on, or were killed too."""
        left = [] if machines_die else self.driver.leave_all()
        for machine in self.driver.machines:
            machine.die("it was killed")
        for incarnation in self.host.live.all():
            await incarnation.guest.aclose()
        again = HostRig(
            self.layout,
            keep_s=self.keep_s,
            survivors=left,
            connect_s=self.connect_s,
            limits=self.limits,
            network=self.network,
        )
        await again.recover()
        return again

    def image(self, home: Path) -> HostRig:
        """Return the host agent that would start if this one was killed now, on a copy of the data directory.

        It has not started yet, and this one goes on, so that nothing it tidies up from now on is seen there.
        """
        subprocess.run(["cp", "-a", "--sparse=always", str(self.layout.home), str(home)], check=True)
        layout = Layout(home)
        survivors = [each.moved(layout.sandboxes) for each in self.driver.leave_all()]
        return HostRig(layout, survivors=survivors, network=FakeNetwork(slots=dict(self.network.slots)))

    def state_of(self, sandbox: SandboxId) -> str:
        """Return "running", "paused", "asleep", "lost" with a reason, or "gone". It is not out of reach."""
        live = self.host.live
        if (awake := live.find(sandbox)) is not None:
            assert awake.machine.alive
            return "paused" if awake.paused else "running"
        if live.sleeper(sandbox) is not None:
            return "asleep"
        return "lost" if sandbox in live.damaged else "gone"

    def describe(self, digest: str = "digest") -> Template:
        """Return a template on empty images, not baked yet."""
        images = {"kernel": "kernel-1", "root": "root-1", "runtime": "runtime-1"}
        for name, file in (("kernel", "vmlinuz"), ("root", "root.img"), ("runtime", "runtime.img")):
            folder = self.layout.images / images[name]
            folder.mkdir(exist_ok=True)
            (folder / file).write_bytes(b"\0" * 65536)
        return Template(
            name=BASE,
            digest=digest,
            created_at=datetime.now(UTC),
            cpu=1,
            memory_mib=256,
            disk_gib=4,
            command_line="quiet",
            images=images,
            fingerprint=self.driver.fingerprint,
            mac=GUEST_MAC,
            bays=2,
        )

    async def bake(self, digest: str = "digest") -> Template:
        """Boot, freeze and publish the template `base`."""
        with self.host.templates.publish(BASE) as draft:
            log = self.layout.logs / "bake.log"
            described, rehearsal = self.describe(digest), Rehearsal(settle_s=0)
            return await boot_and_freeze(self.driver, self.images, described, draft, log, rehearsal)

    @property
    def left(self) -> list[str]:
        """What there is of sandboxes here: machines, slots, folders, snapshots, drafts, sleepers, incarnations."""
        machines = [f"machine {machine.place.name}" for machine in self.driver.running]
        folders = [f"folder {entry.name}" for entry in self.layout.sandboxes.iterdir()]
        snapshots = [f"snapshot {entry.name}" for entry in self.layout.snapshots.iterdir()]
        asleep = [f"sleeper {each.id}" for each in self.host.live.sleepers()]
        machines += [f"slot {name}" for name in self.network.slots]
        return machines + folders + snapshots + asleep + [f"incarnation {each.id}" for each in self.host.live.all()]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A client of the host's interface; at the end every machine is ended."""
        transport = MemoryTransport(host_app(self.host))
        async with httpx2.AsyncClient(transport=transport, base_url="http://host", timeout=None) as client:
            yield client
        for incarnation in self.host.live.all():
            await incarnation.aclose()


def new_rig(folder: Path, *, keep_s: float = 0) -> HostRig:
    """Return a host on a new data directory."""
    return HostRig(Layout(folder / "home"), keep_s=keep_s)


async def put_guest_file(rig: HostRig, sandbox: SandboxId, path: str, data: bytes) -> None:
    """Write a file in a sandbox."""

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    async with guest_of(rig.host, sandbox) as guest:
        await guest.write(path, chunks())


async def guest_file(rig: HostRig, sandbox: SandboxId, path: str) -> bytes:
    """Return what a file in a sandbox holds."""
    async with guest_of(rig.host, sandbox) as guest, guest.read(path) as chunks:
        return b"".join([chunk async for chunk in chunks])
