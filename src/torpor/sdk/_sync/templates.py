"""The prepared starting points of sandboxes, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Literal, Unpack, overload

from torpor.errors import BuildFailed, OutcomeUnknown, TorporError
from torpor.sdk.foreign import checked_id
from torpor.sdk.http import STREAM_SILENCE_S, Call
from torpor.sdk.making import Making, build_call
from torpor.sdk.results import Template, TemplateBuild
from torpor.sdk.retry import Reattaching
from torpor.sdk.sse import Event, EventReader, Unreadable
from torpor.sdk.waiting import sync_deliver, sync_offload, sync_sleep
from torpor.wire.public import TemplateList
from torpor.wire.templates import END, BuildList, unmarked

if TYPE_CHECKING:
    from torpor.sdk._sync.client import Client

Listed = list[Template]
Builds = list[TemplateBuild]


class Templates:
    """The templates of one server: `client.templates`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> Listed:
        """Return the templates that this key can use: its workspace's own, and everybody's.

        `cold_boot_ms` is what their boot took when they were baked, in milliseconds.
        """
        return (self._client.fetch_as(TemplateList, Call("GET", "/templates"))).items

    def get(self, name: str) -> Template:
        """Return the template of this name. Raises NotFound."""
        return self._client.fetch_as(Template, Call("GET", f"/templates/{checked_id(name, 'template')}"))

    def delete(self, name: str) -> None:
        """Remove a template. Sandboxes made from it live on. Raises NotFound if there is none of that name.

        One that is everybody's takes an admin's key; else Forbidden is raised.
        """
        self._client.fetch(Call("DELETE", f"/templates/{checked_id(name, 'template')}"))

    @overload
    def build(
        self,
        name: str,
        *,
        wait: Literal[True] = True,
        on_log: Callable[[str], object] | None = None,
        **making: Unpack[Making],
    ) -> Template: ...

    @overload
    def build(
        self,
        name: str,
        *,
        wait: Literal[False],
        on_log: Callable[[str], object] | None = None,
        **making: Unpack[Making],
    ) -> TemplateBuild: ...

    def build(
        self,
        name: str,
        *,
        wait: bool = True,
        on_log: Callable[[str], object] | None = None,
        **making: Unpack[Making],
    ) -> Template | TemplateBuild:
        """Have a template made and return it; an older one of the name is replaced when all is done.

            client.templates.build("tools", image="registry.example/tools:1", on_log=print)
            client.templates.build("app", dockerfile="Dockerfile", context=".", memory_mb=1024)

        It is made from one of `image`, `dockerfile`, `rootfs`, `archive`, `snapshot` and `recipe`; `Making` has all the
        keywords. `on_log` is called with each line of the log. Without `wait` the build is returned as soon as it is
        queued; whoever stops waiting does not stop the build: `cancel_build` does.

        Raises BuildFailed if it fails or is cancelled, InvalidRequest, TooLarge, Forbidden, QuotaExceeded, and OSError
        for a file that cannot be read.
        """
        ordered = self._client.fetch_as(TemplateBuild, sync_offload(build_call, name, making))
        if not wait:
            return ordered
        return self.wait_for_build(ordered.id, on_log=on_log)

    def wait_for_build(self, id: str, *, on_log: Callable[[str], object] | None = None) -> Template:
        """Wait for a build to end and return its template; `on_log` gets its log from the beginning.

        Raises BuildFailed, NotFound.
        """
        with closing(self.build_logs(id)) as lines:
            for line in lines:
                if on_log is not None:
                    sync_deliver(on_log, line)
        ended = self.get_build(id)
        if ended.status != "done":
            raise BuildFailed(
                f"template {ended.name!r} was not made: {ended.error}",
                build_id=id,
                hint=f"`torpor template logs {id}` has what it said",
            )
        return self.get(ended.name)

    def builds(self) -> Builds:
        """Return the builds of this key's workspace, the newest first: those under way, and some that have ended."""
        return (self._client.fetch_as(BuildList, Call("GET", "/templates/builds"))).items

    def get_build(self, id: str) -> TemplateBuild:
        """Return how far a build has come. Raises NotFound."""
        return self._client.fetch_as(TemplateBuild, Call("GET", f"/templates/builds/{checked_id(id, 'build')}"))

    def build_logs(self, id: str, *, follow: bool = True) -> Generator[str, None]:
        """Yield the lines of a build's log: with `follow` until it has ended, else those there are.

        A connection that breaks is made anew, and goes on where it was.
        """
        path = f"/templates/builds/{checked_id(id, 'build')}/logs"
        patience, after = Reattaching(self._client.retry), ""
        while True:
            try:
                with closing(self._heard(path, after, follow, patience)) as events:
                    for event in events:
                        if event.name == END:
                            return
                        after = event.id
                        yield unmarked(event.data.decode(errors="replace"))
                error: TorporError = OutcomeUnknown("the server ended the log before the build ended")
            except Unreadable as failure:
                raise failure.told() from failure
            except TorporError as failure:
                error = failure
            sync_sleep(patience.wait_s(error))

    def cancel_build(self, id: str) -> None:
        """End a build that waits or runs; fine if it has ended. Raises NotFound."""
        self._client.fetch(Call("DELETE", f"/templates/builds/{checked_id(id, 'build')}"))

    def _heard(self, path: str, after: str, follow: bool, patience: Reattaching) -> Generator[Event, None]:
        """Yield the events that one connection brings."""
        headers = {"Last-Event-ID": after} if after else {}
        query = {"follow": "true" if follow else "false"}
        call = Call("GET", path, params=query, headers=headers, repeatable=False, silence_s=STREAM_SILENCE_S)
        response = self._client.open(call)
        patience.opened()
        try:
            reader = EventReader()
            for chunk in self._client.chunks(response):
                patience.progress()
                yield from reader.feed(chunk)
        finally:
            response.close()
