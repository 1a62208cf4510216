"""A server on a fake VMM in a thread of its own, which can be killed: all of it stops where it is, and stays so.

What a killed process has in hand is lost, and what it wrote is there. A thread cannot be killed, so it is made to stand
still for the rest of the test: its event loop, and those of its worker threads that have come to a crash point. The
machines are taken over, as they are at that moment, by the server that is started next.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import shutil
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from chaos_world import Answer, told
from control_rig import KEY
from host_rig import HostRig
from torpor.control.api.app import create_app
from torpor.control.hosts import HostClient
from torpor.control.main import ControlConfig, kept
from torpor.control.service.plane import Plane, plane_of
from torpor.control.store.contract import Store
from torpor.control.store.sql import open_store
from torpor.host.api import host_app
from torpor.kit import faultpoints
from torpor.storage.layout import Layout
from torpor.testing.store import MemoryStore
from torpor.vmm.fake import Left
from torpor.wire.memory import MemoryTransport

T = TypeVar("T")
# Of the points that are passed, the kill comes at the n-th, n below this.
_WITHIN = 40
# How often the server compares its records with the host, in seconds.
_WATCH_S = 0.05


class Incarnation:
    """One run of the server, from its start to a kill or to its end."""

    def __init__(self, folder: Path, store: MemoryStore | Path, survivors: list[Left]) -> None:
        self._folder, self._kept = folder, store
        self.rig = HostRig(Layout(folder / "home"), survivors=survivors, connect_s=20)
        self.plane: Plane
        self.http: httpx2.AsyncClient
        self.dead = threading.Event()
        self._over, self._halted = threading.Event(), threading.Event()
        self._workers = _Workers()
        self._pending: dict[concurrent.futures.Future[Any], Any] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(self._workers)
        self._stop: asyncio.Event
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="server")
        self._bake = False

    def start(self, *, bake: bool = False) -> None:
        """Start it, and return when it answers."""
        self._bake = bake
        self._thread.start()
        self._ready.result(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(_ended())
        self._workers.shutdown()
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        if self._bake:
            await self.rig.bake()
        await self.rig.recover()
        async with AsyncExitStack() as undo:
            client = HostClient(MemoryTransport(host_app(self.rig.host)))
            undo.push_async_callback(client.aclose)
            config = ControlConfig(self._folder, watch_every_s=_WATCH_S, stop_within_s=0)
            store = await self._store(undo)
            self.plane = plane_of(store, client, config.clock)
            await undo.enter_async_context(kept(self.plane, config))
            headers = {"authorization": f"Bearer {KEY}", "prefer": "wait=300"}
            transport = MemoryTransport(create_app(self.plane, KEY))
            self.http = await undo.enter_async_context(
                httpx2.AsyncClient(transport=transport, base_url="http://localhost/v1", headers=headers, timeout=None)
            )
            undo.push_async_callback(self._let_go)
            self._ready.set_result(None)
            await self._stop.wait()

    async def _store(self, undo: AsyncExitStack) -> Store:
        if isinstance(self._kept, MemoryStore):
            return self._kept
        store = await open_store(self._kept)
        undo.push_async_callback(store.aclose)
        return store

    async def _let_go(self) -> None:
        """Close every line to a guest, of which one that was killed has some."""
        for machine in self.rig.driver.machines:
            await machine.aclose()
        for incarnation in self.rig.host.live.all():
            await incarnation.guest.aclose()
        for sleeper in self.rig.host.live.sleepers():
            await sleeper.hang_up()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def request(self, method: str, path: str, **more: Any) -> Answer:
        """Send a request; one that is under way when the server is killed is a lost answer."""

        async def ask() -> Answer:
            try:
                return told(await self.http.request(method, path, **more))
            except (httpx2.TransportError, RuntimeError):  # it is being stopped
                return Answer(0)

        return self.unless_killed(ask, Answer(0))

    def unless_killed(self, work: Callable[[], Coroutine[Any, Any, T]], lost: T) -> T:
        """Run something in the server's thread; if the server is killed meanwhile, what comes of it is `lost`."""
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        async def run() -> None:
            with suppress(concurrent.futures.InvalidStateError):  # it was killed, and goes on at the end of the test
                try:
                    got = await work()
                except Exception as error:
                    answer.set_exception(error)
                else:
                    answer.set_result(got)

        self._pending[answer] = lost
        try:
            if self.dead.is_set():
                return lost
            asyncio.run_coroutine_threadsafe(run(), self._loop)
            return answer.result(120)
        finally:
            self._pending.pop(answer)

    # -- the kill

    def stand_if_dead(self) -> None:
        """Stand still here, in a thread of a server that was killed, until the test is over."""
        if not self.dead.is_set():
            return
        if threading.current_thread() is self._thread:
            self._halt()
        elif not self._over.is_set():
            with self._workers.standing():
                self._over.wait()

    def is_here(self) -> bool:
        """Tell whether the calling thread is one of this server's."""
        here = threading.current_thread()
        return here is self._thread or self._workers.has(here)

    def kill(self) -> list[Left]:
        """Let all of it stand still, and return the machines it leaves. Called from another thread."""
        self.dead.set()
        self._loop.call_soon_threadsafe(self._halt)
        assert self._halted.wait(60), "the server does not stand still"
        self._workers.wait_quiet()
        for answer, lost in list(self._pending.items()):
            with suppress(concurrent.futures.InvalidStateError):
                answer.set_result(lost)
        return self.rig.driver.leave_all()

    def _halt(self) -> None:
        self._halted.set()
        self._over.wait()
        # From here on it comes to its end on a data directory that is another's: whatever it says means nothing.
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._stop.set()

    def end(self) -> None:
        """At the end of the test: let one that was killed come to its end, or stop one that lives."""
        self._over.set()
        if not self.dead.is_set():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), "a server does not end"


async def _ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


class _Workers(concurrent.futures.ThreadPoolExecutor):
    """The threads a server does its file work in, of which it is known how many work and how many stand still."""

    def __init__(self) -> None:
        super().__init__(max_workers=8)
        self._turn = threading.Condition()
        self._active = self._standing = 0

    def has(self, thread: threading.Thread) -> bool:
        """Tell whether a thread is one of them."""
        return thread in self._threads

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        with self._turn:
            self._active += 1

        def work() -> T:
            try:
                return fn(*args, **kwargs)
            finally:
                with self._turn:
                    self._active -= 1
                    self._turn.notify_all()

        return super().submit(work)

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Count the calling thread as one that stands still while the block lasts."""
        with self._turn:
            self._standing += 1
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._standing -= 1

    def wait_quiet(self) -> None:
        """Return when each of them has nothing to do, or stands still."""
        with self._turn:
            assert self._turn.wait_for(lambda: self._active == self._standing, 60), "a thread does not stand still"


class FakeWorld:
    """See the module, and `chaos.World`."""

    def __init__(self, folder: Path, *, seed: int = 0, on_disk: bool = False) -> None:
        self._folder, self._dice = folder, random.Random(seed)
        self._kept: MemoryStore | Path = folder / "records-0.db" if on_disk else MemoryStore()
        self._all: list[Incarnation] = []
        self._turnstile = threading.Condition()
        self._restarting = False
        self._countdown = 0
        self._hit = threading.Event()
        self.passed: list[str] = []  # the points that were come to, in their order

    @contextmanager
    def started(self) -> Iterator[FakeWorld]:
        """Run a server while the block lasts."""
        faultpoints.watch(self._on_point)
        try:
            self._start([], bake=True)
            yield self
        finally:
            faultpoints.watch(None)
            with warnings.catch_warnings():  # what was killed closes nothing
                warnings.simplefilter("ignore", ResourceWarning)
                while self._all:  # none is left in a variable, to be collected in another test
                    self._all.pop().end()
                gc.collect()

    @property
    def server(self) -> Incarnation:
        """The server that runs now."""
        return self._all[-1]

    def _start(self, survivors: list[Left], *, bake: bool = False) -> None:
        if isinstance(self._kept, Path) and self._all:
            self._kept = self._left_behind(self._kept)
        server = Incarnation(self._folder, self._kept, survivors)
        self._all.append(server)
        server.start(bake=bake)

    def _left_behind(self, records: Path) -> Path:
        """Return a copy of a database as a kill leaves it: a thread that stands still may hold the lock of the first.

        What its driver's thread has begun is done, as the kernel does what a process has asked for before its end; a
        transaction that is not ended by then is not in the copy, as the write-ahead log knows nothing of its end.
        """
        copy = records.with_name(f"records-{len(self._all)}.db")
        for end in ("", "-wal"):
            source = records.with_name(records.name + end)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + end))
        return copy

    @property
    def store(self) -> Store:
        """The records of the server that runs now."""
        return self.server.plane.store

    def request(
        self, method: str, path: str, *, params: Mapping[str, str], content: bytes | None, json: Any, key: str | None
    ) -> Answer:
        with self._turnstile:
            self._turnstile.wait_for(lambda: not self._restarting)
            server = self.server
        headers = {"idempotency-key": key} if key else {}
        return server.request(method, path, params=dict(params), content=content, json=json, headers=headers)

    def kill_machine(self, sandbox: str) -> bool:
        server = self.server

        async def die() -> bool:
            found = [machine for machine in server.rig.driver.running if machine.place.name == sandbox]
            for machine in found:
                machine.die("it was killed")
            return bool(found)

        return server.unless_killed(die, lost=False)

    def kill_server(self) -> None:
        within = self._dice.randrange(_WITHIN)
        if within:
            self._hit.clear()
            self._countdown = within
            self._hit.wait(1)
        self.kill_now()

    def kill_now(self) -> None:
        """Kill the server where it stands, and start the next one."""
        with self._turnstile:
            self._restarting = True
        try:
            self._countdown = 0
            self._start(self.server.kill())
        finally:
            with self._turnstile:
                self._restarting = False
                self._turnstile.notify_all()

    def crash_at(self, point: str) -> threading.Event:
        """Let the server stand still as soon as it comes to a point; return what is set then."""
        self._wanted = point
        self._hit.clear()
        return self._hit

    def count_command(self, name: str) -> str:
        return f"count {name}"

    _wanted = ""

    def _on_point(self, point: str) -> None:
        owner = next((server for server in self._all if server.is_here()), None)
        if owner is None:
            return
        if not owner.dead.is_set():
            self.passed.append(point)
        if owner is self.server and not owner.dead.is_set() and self._is_it(point):
            with self._turnstile:
                self._restarting = True
            owner.dead.set()
            self._hit.set()
        owner.stand_if_dead()

    def _is_it(self, point: str) -> bool:
        if point == self._wanted:
            self._wanted = ""
            return True
        self._countdown -= 1
        return self._countdown == 0
