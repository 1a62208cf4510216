"""The prepared starting points of sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torpor.sdk.foreign import checked_id
from torpor.sdk.http import Call
from torpor.sdk.results import Template
from torpor.wire.public import TemplateList

if TYPE_CHECKING:
    from torpor.sdk._async.client import AsyncClient

Listed = list[Template]


class AsyncTemplates:
    """The templates of one server: `client.templates`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> Listed:
        """Return the baked templates. `cold_boot_ms` is what their boot took when they were baked, in milliseconds."""
        return (await self._client.fetch_as(TemplateList, Call("GET", "/templates"))).items

    async def delete(self, name: str) -> None:
        """Remove a template. Sandboxes made from it live on. Raises NotFound if there is none of that name."""
        await self._client.fetch(Call("DELETE", f"/templates/{checked_id(name, 'template')}"))
