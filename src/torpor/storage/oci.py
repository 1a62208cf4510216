"""Images as containers have them: pulled by skopeo, unpacked by umoci, both in jails."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torpor.errors import Failed, Forbidden, InvalidRequest, NotFound
from torpor.model.template import Defaults
from torpor.storage import relay
from torpor.storage.gateway import PROXY_PORT, check_registry, gateway
from torpor.storage.jailed import WORK, Jailed, interpreter
from torpor.storage.programs import require
from torpor.storage.references import Allowed, Reference, parse_reference

_PLATFORM = ("--override-os", "linux", "--override-arch", "amd64")
_LARGEST_FILE = 16 * 1024 * 1024 * 1024
_SKOPEO = (
    "prlimit",
    f"--fsize={_LARGEST_FILE}",
    "skopeo",
    "--insecure-policy",
    "--command-timeout",
    "1h",
    "--tmpdir",
    WORK,
)
_AUTH, _PRINTED = "/auth.json", "printed"
_NOT_THERE = ("manifest unknown", "name unknown", "not found", "name invalid")
_NOT_ALLOWED = ("unauthorized", "denied", "authentication required", "forbidden")
_LARGEST_MANIFEST = 8 * 1024 * 1024
_MEMORY_BYTES = 64 * 1024


class Settings(BaseModel):
    """What an image's configuration says of its commands."""

    model_config = ConfigDict(hide_input_in_errors=True, strict=True)

    Env: list[str] | None = None
    WorkingDir: str | None = None
    User: str | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None


class _Platform(BaseModel):
    os: str = ""
    architecture: str = ""
    variant: str | None = None


class _Entry(BaseModel):
    platform: _Platform = Field(default_factory=_Platform)


class _Manifest(BaseModel):
    manifests: list[_Entry] | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """An image's own settings: what its commands get, and the words of its entry point and of its command."""

    defaults: Defaults
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def configured(said: object) -> Configured:
    """Read an image's settings. Raises InvalidRequest for what no settings are."""
    try:
        settings = Settings.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"the image's settings make no sense: {field}: {first['msg']}") from error
    env = dict(_variable(text) for text in settings.Env or ())
    cwd = settings.WorkingDir or None
    if cwd is not None and not cwd.startswith("/"):
        cwd = f"/{cwd}"
    defaults = Defaults(env, cwd, settings.User or None)
    words = [*env, *env.values(), cwd or "", defaults.user or "", *(settings.Entrypoint or ()), *(settings.Cmd or ())]
    if any("\0" in word for word in words) or sum(map(len, words)) > _MEMORY_BYTES:
        raise InvalidRequest("the image's settings make no sense: they are too long, or have a NUL in them")
    return Configured(defaults, tuple(settings.Entrypoint or ()), tuple(settings.Cmd or ()))


def _variable(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name:
        raise InvalidRequest("the image's settings make no sense: a variable has no name")
    return name, value


class Registry:
    """Pulls images. `folder`: a folder of its own, for what it needs on the way."""

    def __init__(self, folder: Path, reference: str, log: Path, allowed: Allowed | None = None) -> None:
        self._folder, self._log = folder, log
        self._reference: Reference = parse_reference(reference)
        self._allowed = Allowed.from_environment() if allowed is None else allowed

    async def digest(self) -> str:
        """Return the SHA-256 of what the name stands for now, in hex.

        Raises InvalidRequest for a registry that may not be spoken to, or an image for other architectures only;
        NotFound, Forbidden, Failed as the registry answers.
        """
        await check_registry(self._reference, self._allowed)
        source = f"docker://{self._reference.text}"
        await self._skopeo("inspect", *self._security("inspect"), "--raw", source)
        printed = self._folder / _PRINTED
        if printed.stat().st_size > _LARGEST_MANIFEST:
            raise InvalidRequest(f"the manifest of {self._reference.text} is too large")
        manifest = printed.read_bytes()
        _check_platforms(self._reference.text, manifest)
        return hashlib.sha256(manifest).hexdigest()

    async def pull(self) -> str:
        """Copy the image to an OCI layout in the folder, and return its name in the jail. Raises as `digest` does."""
        source, target = f"docker://{self._reference.text}", f"oci:{WORK}/layout:image"
        await self._skopeo(*_PLATFORM, "copy", *self._security("copy"), "--quiet", source, target)
        return f"{WORK}/layout"

    def _security(self, verb: str) -> list[str]:
        prefix = "src-" if verb == "copy" else ""
        words = [f"--{prefix}tls-verify=false"] if self._reference.is_loopback else []
        return [*words, *([f"--authfile={_AUTH}"] if _auth() is not None else [])]

    async def _skopeo(self, *words: str) -> None:
        auth, name = _auth(), self._reference.text
        env = {"HTTPS_PROXY": f"http://127.0.0.1:{PROXY_PORT}"}
        async with gateway(self._folder, self._reference, self._allowed) as ways:
            seen = {"/relay.py": Path(relay.__file__), "/gateway": self._folder}
            jail = Jailed(self._folder, seen if auth is None else {**seen, _AUTH: auth}, ("CAP_NET_BIND_SERVICE",), env)
            argv = [interpreter(), "-I", "/relay.py", f"{WORK}/{_PRINTED}", *ways, "--", *_SKOPEO, *words]
            require("skopeo", "skopeo")
            try:
                await jail.run(argv, "bubblewrap", f"the image {name} was not pulled", self._log)
            except Failed as error:
                raise _translated(error, name) from error


def _auth() -> Path | None:
    """Return the file with the credentials for registries, if the operator has named one. Raises InvalidRequest."""
    named = os.environ.get("TORPOR_REGISTRY_AUTH")
    if not named:
        return None
    path = Path(named)
    if not path.is_file():
        raise InvalidRequest(f"TORPOR_REGISTRY_AUTH names {named}, which is no file")
    return path.resolve()


def _translated(error: Failed, name: str) -> Exception:
    """Return what skopeo said as the error that it is."""
    found = re.search(r'msg="((?:[^"\\]|\\.)*)"', error.message)
    said = (found[1].replace('\\"', '"') if found else error.message).removeprefix("Error ")[:400]
    low = said.lower()
    if "not public" in low:
        return InvalidRequest(f"the registry of {name} leads to an address that is not public")
    if any(words in low for words in _NOT_ALLOWED):
        hint = "the operator of the host names a file with credentials in TORPOR_REGISTRY_AUTH"
        return Forbidden(f"the registry does not give out {name}: {said}", hint=hint)
    if any(words in low for words in _NOT_THERE):
        return NotFound(f"there is no image {name}: {said}")
    if "no image found in" in low:
        return InvalidRequest(f"the image {name} is not made for linux/amd64")
    return Failed(f"the image {name} was not pulled: {said}")


def _check_platforms(name: str, manifest: bytes) -> None:
    """Refuse an index without an image for guests. Raises InvalidRequest."""
    try:
        entries = _Manifest.model_validate_json(manifest).manifests
    except ValidationError as error:
        raise InvalidRequest(f"the registry's manifest of {name} makes no sense") from error
    if entries is None:
        return
    platforms = [each.platform for each in entries]
    if not any((each.os, each.architecture) == ("linux", "amd64") for each in platforms):
        there = ", ".join(sorted({f"{each.os}/{each.architecture}"[:40] for each in platforms})) or "nothing"
        raise InvalidRequest(f"the image {name} is made for {there}, and guests here are linux/amd64")


async def open_archive(folder: Path, archive: Path, log: Path) -> str:
    """Copy the one image of an archive to an OCI layout in a folder, and return the layout's name in the jail.

    The archive is what `docker save` writes, or an OCI layout, as one file. Raises InvalidRequest if it is neither.
    """
    require("skopeo", "skopeo")
    jail = Jailed(folder, {"/image.tar": archive})
    words: Sequence[str] = (*_SKOPEO, *_PLATFORM, "copy", "--quiet")
    said = ""
    for kind in ("oci-archive", "docker-archive"):
        try:
            await jail.run([*words, f"{kind}:/image.tar", f"oci:{WORK}/layout:image"], "util-linux", "", log)
        except Failed as error:
            said = said or str(_translated(error, "in the archive"))
            continue
        return f"{WORK}/layout"
    raise InvalidRequest(
        f"the archive holds no image that can be used: {said}", hint="send what `docker save` or `skopeo copy` writes"
    )


def settings_json(found: Configured) -> str:
    """Return settings as they are kept beside the disk that was made of the image."""
    env, cwd, user = dict(found.defaults.env), found.defaults.cwd, found.defaults.user
    return json.dumps({"env": env, "cwd": cwd, "user": user, "entrypoint": found.entrypoint, "command": found.command})


def read_settings(path: Path) -> Configured:
    """Return settings that were kept; a disk of Torpor's own has none."""
    if not path.exists():
        return Configured(Defaults())
    said = json.loads(path.read_text())
    defaults = Defaults(said["env"], said["cwd"], said["user"])
    return Configured(defaults, tuple(said["entrypoint"]), tuple(said["command"]))
