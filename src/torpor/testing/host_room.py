"""How much room the fake host has for machines, and its answers about that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from torpor.errors import NoCapacity
from torpor.model.capacity import Limits, Need, need_of, shortage, total
from torpor.testing.host_answers import json_answer
from torpor.testing.host_files import Act
from torpor.testing.host_machines import FakeMachine
from torpor.wire import host
from torpor.wire.capacity import Capacity, Promise


class _Sized(Protocol):
    @property
    def memory_mb(self) -> int: ...

    @property
    def disk_gb(self) -> int: ...


class HostRoom:
    """Refuses machines beyond `limits`, which a test may set; at first there are none."""

    def __init__(self, machines: Mapping[str, FakeMachine]) -> None:
        self.limits = Limits()
        self.reserved: dict[str, Need] = {}
        self._machines = machines

    def promised(self) -> Need:
        """Return what is promised to machines that live, and to those that have a reservation."""
        facts = [machine.facts for machine in self._machines.values()]
        living = [_need(one) for one in facts if one.alive and one.status != "asleep"]
        return total([*living, *self.reserved.values()])

    def demand(self, sandbox_id: str, size: _Sized) -> None:
        """Raise NoCapacity unless there is room for one more machine; what is reserved for it is used up."""
        self.reserved.pop(sandbox_id, None)
        self._demand(_need(size))

    def routes(self) -> list[tuple[str, str, str, Act]]:
        """Return method, path, verb and answer of each."""
        return [
            ("POST", "/host/v1/reservations", "reserve", self._reserve),
            ("GET", "/host/v1/capacity", "capacity", self._capacity),
        ]

    def _demand(self, need: Need) -> None:
        if (lacking := shortage(self.limits, self.promised(), need)) is not None:
            raise NoCapacity(
                f"the host has no room: {lacking}",
                resource=lacking.resource,
                limit=lacking.limit,
                used=lacking.used,
                hint="delete or hibernate a sandbox",
            )

    async def _reserve(self, request: Request) -> Response:
        order = host.Reserve.model_validate_json(await request.body())
        need = need_of(order.memory_mb, order.disk_gb)
        self._demand(total([need] * len(order.ids)))
        self.reserved |= dict.fromkeys(order.ids, need)
        return Response(status_code=204)

    async def _capacity(self, request: Request) -> Response:
        used = self.promised()
        return json_answer(
            Capacity(
                machines=Promise(limit=self.limits.machines, used=used.machines),
                memory=Promise(limit=self.limits.memory_bytes, used=used.memory_bytes),
                disk=Promise(limit=self.limits.disk_bytes, used=used.disk_bytes),
            )
        )


def _need(size: _Sized) -> Need:
    return need_of(size.memory_mb, size.disk_gb)
