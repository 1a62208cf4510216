"""What the SDK sends for a template: which files of a context, under which names, and in which form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor.errors import InvalidRequest
from torpor.sdk import making
from torpor.sdk.http import Call
from torpor.sdk.making import Form, Sent, build_call


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    for name in ("Dockerfile", "src/app.py", "src/deep/er.txt", "node_modules/x/index.js", "run.sh", "notes.md"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "Dockerfile").write_text("FROM base\nCOPY . /work/\n")
    (root / "run.sh").chmod(0o755)
    (root / "notes.md").chmod(0o600)
    return root


def sent(call: Call) -> bytes:
    assert call.body is not None
    return b"".join(call.body.begin())


def names(call: Call) -> list[str]:
    heads = [
        line for line in sent(call).split(b"\r\n") if line.startswith(b"Content-Disposition") and b"filename" in line
    ]
    return [head.split(b'name="')[1].split(b'"')[0].decode() for head in heads]


def test_a_context_is_sent_with_the_dockerfile_in_it_and_modes(context: Path) -> None:
    call = build_call("app", {"context": context, "args": {"A": "1"}})
    assert names(call) == [
        "Dockerfile",
        "node_modules/x/index.js",
        "notes.md",
        "run.sh",
        "src/app.py",
        "src/deep/er.txt",
    ]
    body = sent(call)
    assert b'name="dockerfile"\r\n\r\nFROM base\nCOPY . /work/\n\r\n' in body
    assert b'name="build_args"\r\n\r\n{"A": "1"}\r\n' in body
    assert b'name="run.sh"; filename="file"\r\nX-File-Mode: 755\r\n\r\nrun.sh\r\n' in body
    assert b"X-File-Mode: 600\r\n\r\nnotes.md" in body
    assert call.may_repeat
    assert call.may_resend
    assert sent(call) == body


def test_what_a_dockerignore_leaves_out_is_not_sent(context: Path) -> None:
    (context / ".dockerignore").write_text("# comment\nnode_modules\n**/*.txt\n*.md\n!notes.md\n")
    call = build_call("app", {"context": context})
    assert names(call) == [".dockerignore", "Dockerfile", "notes.md", "run.sh", "src/app.py"]


def test_links_in_a_context_are_sent_as_what_they_lead_to(context: Path) -> None:
    (context / "link.py").symlink_to("src/app.py")
    (context / "folder").symlink_to("src")
    body = sent(build_call("app", {"context": context}))
    assert b'name="link.py"; filename="file"\r\nX-File-Mode: 644\r\n\r\nsrc/app.py\r\n' in body
    assert b'name="folder/deep/er.txt"' in body


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "nowhere", "."])
def test_a_link_that_leads_out_of_a_context_or_nowhere_is_refused_by_name(context: Path, target: str) -> None:
    (context.parent / "outside").write_text("secret")
    (context / "src" / "bad").symlink_to(target)
    with pytest.raises(InvalidRequest, match="in the context, src/bad"):
        build_call("app", {"context": context})


def test_what_is_no_file_is_refused_unless_it_is_left_out(context: Path) -> None:
    os.mkfifo(context / "pipe")
    with pytest.raises(InvalidRequest, match="pipe is no file"):
        build_call("app", {"context": context})
    (context / ".dockerignore").write_text("pipe")
    assert "pipe" not in names(build_call("app", {"context": context}))


def test_too_large_a_context_is_refused_before_anything_is_sent(context: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MAX_CONTEXT_FILES", 3)
    with pytest.raises(InvalidRequest, match="has more than 3 files") as refused:
        build_call("app", {"context": context})
    assert refused.value.hint is not None
    assert ".dockerignore" in refused.value.hint


def test_a_dockerfile_is_given_as_a_path_or_as_text(context: Path) -> None:
    texts: list[str | Path] = [
        "FROM base\nRUN true\n",
        context / "Dockerfile",
        str(context / "Dockerfile"),
        "FROM scratch",
    ]
    for given in texts:
        assert b'"dockerfile":"FROM ' in build_call("app", {"dockerfile": given}).content
    with pytest.raises(InvalidRequest, match="there is no Dockerfile Containerfile"):
        build_call("app", {"dockerfile": "Containerfile"})


def test_archives_are_sent_under_the_name_of_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"bytes")
    assert names(build_call("app", {"rootfs": tmp_path / "a.tar"})) == ["rootfs"]
    assert names(build_call("app", {"archive": str(tmp_path / "a.tar")})) == ["image"]
    with pytest.raises(InvalidRequest, match=r"there is no file .*b\.tar"):
        build_call("app", {"rootfs": tmp_path / "b.tar"})


def test_sizes_are_sent_in_the_units_of_the_api() -> None:
    call = build_call("app", {"image": "registry.example/x", "size_gb": 3, "memory_mb": 512, "force": True})
    assert call.content == (
        b'{"name":"app","image_ref":"registry.example/x","size_mb":3072,"memory_mb":512,"force":true}'
    )


def test_a_keyword_that_is_none_is_said() -> None:
    with pytest.raises(TypeError, match="'imgae'"):
        build_call("app", {"imgae": "x"})  # type: ignore[typeddict-unknown-key]  # that is the point


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_form_is_read_in_pieces_of_any_size_and_again_from_its_start(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"content" * 1000)
    form = Form({"name": "x"}, [Sent('quote".txt', tmp_path / "file")])
    read = [b"".join(iter(lambda: form.read(size), b"")) for _ in range(2) if form.seek(0) == 0]
    assert read[0] == read[1]
    assert len(read[0]) == form.tell()
    assert b'name="quote%22.txt"' in read[0]
    assert read[0].count(b"content") == 1000
