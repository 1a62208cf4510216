"""Templates made on a host from images, archives, Dockerfiles and snapshots, and sandboxes of them, on real guests."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from guests import open_files, processes_named
from host_agent import HostAgent, home_with_images, running_agent
from oci_images import a_file, an_image, archive_layout, archive_of
from torpor.errors import InvalidRequest
from torpor.kit.proc import run
from torpor.model.ids import new_build_id, new_snapshot_id
from torpor.storage.debian import unpack
from torpor.wire.builds import BuildOrder
from torpor.wire.host import Freeze

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes root file systems")
APPLETS = ("sh", "cat", "id", "ls", "pwd", "env", "sleep", "mkdir", "mv", "true", "date")
# Counts in a file that is whole at every instant.
COUNTING = "n=0; while true; do n=$((n+1)); echo $n >/tmp/next && mv /tmp/next /tmp/count; sleep 0.1; done"


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One static program that is all of a small system."""
    folder = tmp_path_factory.mktemp("busybox")
    asyncio.run(unpack("busybox-static", folder, folder / "log"))
    return next(path for path in folder.rglob("bin/busybox") if path.is_file()).read_bytes()


@pytest.fixture
async def agent(template_home: Path, tmp_path: Path) -> AsyncIterator[HostAgent]:
    async with running_agent(home_with_images(template_home, tmp_path / "home")) as agent:
        yield agent


def small_system(busybox: bytes) -> bytes:
    links = [a_file(f"bin/{name}", type=tarfile.SYMTYPE, linkname="busybox") for name in APPLETS]
    passwd = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
    return archive_of(a_file("bin/busybox", busybox, 0o755), *links, a_file("etc/passwd", passwd))


async def test_a_tar_without_python_or_glibc_becomes_a_template_whose_program_runs_from_the_start(
    agent: HostAgent, busybox: bytes
) -> None:
    view = await agent.build(
        {"template": "small", "source": {"kind": "rootfs"}, "memory_mb": 128, "disk_gb": 1, "start_command": COUNTING},
        {"rootfs.tar": small_system(busybox)},
    )
    assert (view.memory_mb, view.disk_gb) == (128, 1)
    async with agent.sandbox("small") as first, agent.sandbox("small") as second:
        for sandbox in (first, second):
            count = int(await agent.shell(sandbox, "cat /tmp/count"))
            assert count > 1
            while int(await agent.shell(sandbox, "sleep 0.2; cat /tmp/count")) <= count:
                pass
        assert (await agent.shell(first, "cat /etc/hostname")).strip() == first
        assert (await agent.shell(first, "id", user="app")).startswith("uid=1000")

        # Its snapshot becomes a template, whose sandboxes go on where it was taken.
        await agent.shell(first, "echo kept >/file && echo memory >/dev/shm/file")
        snapshot = new_snapshot_id()
        await agent.client.snapshot(first, Freeze(id=snapshot, kind="checkpoint"))
    await agent.build({"template": "promoted", "source": {"kind": "snapshot", "snapshot": snapshot}})
    await agent.client.remove_snapshot(snapshot)
    async with agent.sandbox("promoted", env={"A": "1"}) as sandbox:
        assert await agent.shell(sandbox, "cat /file /dev/shm/file && echo $A") == "kept\nmemory\n1\n"
        count = int(await agent.shell(sandbox, "cat /tmp/count"))
        while int(await agent.shell(sandbox, "sleep 0.2; cat /tmp/count")) <= count:
            pass
    with pytest.raises(InvalidRequest, match=r"line 1.*made of a snapshot"):
        await agent.build({"template": "more", "source": {"kind": "dockerfile", "dockerfile": "FROM promoted"}})


async def test_an_image_with_nothing_but_one_program_becomes_a_template(
    agent: HostAgent, busybox: bytes, tmp_path: Path
) -> None:
    config = {"Env": ["PATH=/", "GREETING=hello"], "WorkingDir": "/work/here", "User": "1234:5", "Cmd": ["/tool", "x"]}
    image = an_image(archive_of(a_file("env", busybox, 0o755)), config=config)
    archive = archive_layout(image, tmp_path / "layout", tmp_path / "image.tar")
    await agent.build(
        {"template": "bare", "source": {"kind": "archive"}, "memory_mb": 128, "disk_gb": 1},
        {"image.tar": archive.read_bytes()},
    )
    async with agent.sandbox("bare", env={"MORE": "1"}) as sandbox:
        code, out, _ = await agent.run(sandbox, "env")
        lines = set(out.splitlines())
        assert code == 0
        assert {"PATH=/", "GREETING=hello", "MORE=1", "USER=1234", f"TORPOR_SANDBOX_ID={sandbox}"} <= lines
        code, _, err = await agent.run(sandbox, "/bin/sh", "-c", "echo hello")
        assert (code, err) == (
            127,
            "/bin/sh: this sandbox has no shell; give the command as a list of words, which are run as they are\n",
        )
        assert (await agent.run(sandbox, "nothing"))[0] == 127
        entry = await agent.client.stat(sandbox, "/work/here")
        assert entry.is_dir
        snapshot = new_snapshot_id()
        await agent.client.hibernate(sandbox, Freeze(id=snapshot, kind="hibernation"))
    again = await agent.restore(snapshot=snapshot)
    assert (await agent.run(again.id, "env"))[0] == 0


DOCKERFILE = """\
# A program on top of a template
FROM base
ARG WHO=nobody
ENV GREETING="hello, ${WHO}"
WORKDIR /srv/app
COPY --chown=www-data:33 --chmod=640 data/ data
COPY run.sh .
ADD more.tar /opt
RUN ./run.sh >out && \\
    cat /opt/more && cat out
USER www-data
RUN id -un && pwd
CMD ["sh", "-c", "echo $GREETING >/tmp/started; exec sleep 1000"]
"""


async def test_a_dockerfile_s_steps_are_taken_in_a_guest_and_its_command_runs_in_every_sandbox(
    agent: HostAgent,
) -> None:
    order = {
        "template": "app",
        "source": {"kind": "dockerfile", "dockerfile": DOCKERFILE, "arguments": {"WHO": "world"}},
        "memory_mb": 192,
    }
    files = {
        "context/data/one.txt": b"1",
        "context/data/.hidden": b"h",
        "context/secret": b"s",
        "context/.dockerignore": b"secret\n",
        "context/run.sh": b"#!/bin/sh\necho ran as $(id -u) by $0 for $WHO\n",
        "context/more.tar": archive_of(a_file("more", b"added\n"), a_file("dev/null", type=tarfile.CHRTYPE)),
    }
    await agent.build(order, files)
    said = agent.lines
    assert "ran as 0 by ./run.sh for world" in said
    assert "added" in said
    assert said[-10:].index("www-data") == said[-10:].index("/srv/app") - 1
    assert any(line.startswith("step 6/7: RUN") for line in said) or any("RUN ./run.sh" in line for line in said)
    async with agent.sandbox("app") as sandbox:
        assert await agent.shell(sandbox, "pwd; id -un; echo $GREETING; cat /tmp/started") == (
            "/srv/app\nwww-data\nhello, world\nhello, world\n"
        )
        listed = await agent.shell(sandbox, "stat -c '%n %a %U %G' data/one.txt data/.hidden run.sh /opt/more")
        assert listed == (
            "data/one.txt 640 www-data www-data\ndata/.hidden 640 www-data www-data\nrun.sh 755 root root\n"
            "/opt/more 644 root root\n"
        )
        processes = await agent.shell(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", user="root")
        assert "sleep 1000" in processes

    # What is unchanged is not run again, and what fails leaves nothing but what was there.
    await agent.build(order, files)
    assert not [line for line in agent.lines if line.startswith("step ")]
    assert await left_of_builds(agent) == []
    bad = {"kind": "dockerfile", "dockerfile": "FROM base\nEXPOSE 80\n"}
    with pytest.raises(InvalidRequest, match="Dockerfile, line 2: EXPOSE is not known here"):
        await agent.build({"template": "app", "source": bad})
    assert await left_of_builds(agent) == []
    async with agent.sandbox("app"):
        pass


async def test_hanging_up_ends_a_build_with_its_machine(agent: HostAgent) -> None:
    source = {"kind": "dockerfile", "dockerfile": "FROM base\nRUN echo under way; sleep 1000\n"}
    order = BuildOrder.model_validate({"template": "never", "source": source, "memory_mb": 192})
    async with agent.client.build(new_build_id(), order) as news:
        async for each in news:
            if each.line == "under way":
                break
        assert machines_of(agent)
    await wait_for_no_build(agent)
    assert machines_of(agent) == []
    assert await left_of_builds(agent) == []
    assert "never" not in [each.name for each in await agent.client.templates()]


def machines_of(agent: HostAgent) -> list[int]:
    """Return the QEMUs that have a file of the data directory open."""
    qemus = processes_named("qemu-system")
    return [pid for pid in qemus if any(str(agent.home) in name for name in open_files(pid))]


async def wait_for_no_build(agent: HostAgent) -> None:
    """Return when the host would build again: a recipe that it is asked for is refused for what it is, and not Busy."""
    for _ in range(200):
        try:
            await agent.build({"template": "never", "source": {"kind": "snapshot", "snapshot": "snp-0000000000000000"}})
        except Exception as error:
            if "being built" not in str(error):
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the build did not end")


async def left_of_builds(agent: HostAgent) -> list[str]:
    """Return what there is of builds and of drafts, and what is mounted, below the data directory."""
    folders = [agent.home / name for name in ("images", "templates", "builds")]
    names = [entry.name for folder in folders for entry in folder.iterdir() if entry.name.startswith((".", "bld-"))]
    mounts = await run(["cat", "/proc/self/mountinfo"])
    return names + [line for line in mounts.splitlines() if str(agent.home) in line]
