"""What a command finds around it: variables, folder, user, encodings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torpor import Client, Sandbox
from torpor.errors import InvalidRequest, TorporError


@pytest.fixture(scope="module")
def with_worker(client: Client) -> Iterator[Sandbox]:
    """A sandbox with an ordinary user `worker`."""
    with Sandbox.create(client=client, ttl_seconds=1800) as sandbox:
        sandbox.exec("useradd --create-home --shell /bin/bash worker", check=True)
        yield sandbox


def test_variables_and_folder_are_exact_and_last_for_one_command(sandbox: Sandbox) -> None:
    value = 'x y"z\nq'
    sandbox.exec(["mkdir", "-p", "/tmp/a b"], check=True)
    show = ["python3", "-c", "import os; print(repr(os.environ.get('A')), os.getcwd())"]
    assert sandbox.exec(show, env={"A": value}, cwd="/tmp/a b", check=True).stdout == f"{value!r} /tmp/a b\n"
    after = sandbox.exec(show, check=True).stdout
    assert after.startswith("None ")
    assert "/tmp/a b" not in after


def test_variables_of_the_sandbox_are_in_every_command_and_a_commands_own_win(client: Client) -> None:
    with Sandbox.create(client=client, ttl_seconds=600, env={"A": "all", "B": "all"}) as sandbox:
        assert sandbox.exec("echo $A $B", env={"B": "one"}).stdout == "all one\n"
        assert sandbox.exec("echo $A $B").stdout == "all all\n"


def test_a_profile_is_read_neither_by_a_list_nor_by_the_shell(fresh_sandbox: Sandbox) -> None:
    fresh_sandbox.exec("echo 'sleep 5; echo noise' | tee ~/.profile ~/.bashrc ~/.bash_profile >/dev/null", check=True)
    for command in ("echo quiet", ["echo", "quiet"]):
        result = fresh_sandbox.exec(command)
        assert result.stdout == "quiet\n"
        assert result.duration_ms < 5000


def test_root_has_roots_home_name_and_path(sandbox: Sandbox) -> None:
    home, user, path = sandbox.exec("echo $HOME; echo $USER; echo $PATH", check=True).stdout.splitlines()
    assert (home, user) == ("/root", "root")
    assert {"/usr/local/bin", "/usr/sbin", "/usr/bin"} <= set(path.split(":"))


def test_a_user_has_its_own_home_name_ids_and_path(with_worker: Sandbox) -> None:
    show = "echo $HOME; echo $USER; echo $PATH; id -un; id -Gn"
    home, user, path, name, groups = with_worker.exec(show, user="worker", check=True).stdout.splitlines()
    assert (home, user, name, groups) == ("/home/worker", "worker", "worker", "worker")
    assert {"/usr/local/bin", "/usr/bin"} <= set(path.split(":"))


def test_a_user_that_does_not_exist_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequest, match="nobody-here"):
        sandbox.exec("true", user="nobody-here")


def test_a_user_may_not_do_what_only_root_may(with_worker: Sandbox) -> None:
    result = with_worker.exec("touch /etc/forbidden", user="worker")
    assert result.exit_code == 1
    assert "Permission denied" in result.stderr


def test_programs_print_any_character_and_file_names_hold_any(sandbox: Sandbox) -> None:
    result = sandbox.exec(["python3", "-c", "print('é 漢 😀')"], check=True)
    assert (result.stdout, result.stderr) == ("é 漢 😀\n", "")
    name = "/tmp/nämé-漢-😀/ファイル.txt"
    sandbox.filesystem.write(name, "inside")
    assert sandbox.exec(["cat", name], check=True).stdout == "inside"
    assert [entry.name for entry in sandbox.filesystem.list("/tmp/nämé-漢-😀")] == ["ファイル.txt"]
    python = "import os; print(os.listdir('/tmp/nämé-漢-😀'))"
    assert sandbox.exec(["python3", "-c", python], check=True).stdout == "['ファイル.txt']\n"


def test_a_folder_that_was_deleted_is_a_typed_error(sandbox: Sandbox) -> None:
    with pytest.raises(TorporError) as caught:
        sandbox.exec("true", cwd="/tmp/never-there")
    assert caught.value.code in ("invalid_request", "not_found")
    assert "/tmp/never-there" in caught.value.message


def test_input_is_exact_and_ends(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 4096
    assert sandbox.exec(["cat"], stdin=data, check=True).stdout_bytes == data
    assert sandbox.exec(["cat"], check=True, timeout_seconds=20).stdout == ""


def test_the_host_name_is_the_sandboxs_id_and_the_clock_is_right(fresh_sandbox: Sandbox) -> None:
    import time

    before = time.time()
    name, seconds = fresh_sandbox.exec("hostname; date +%s.%N", check=True).stdout.split()
    after = time.time()
    assert name == fresh_sandbox.id
    assert before - 1 <= float(seconds) <= after + 1


def test_two_sandboxes_of_one_template_draw_different_random_numbers(client: Client) -> None:
    command = "cat /proc/sys/kernel/random/uuid; od -An -tx1 -N16 /dev/urandom; cat /proc/sys/kernel/random/boot_id"
    drawn = []
    for _ in range(2):
        with Sandbox.create(client=client, ttl_seconds=600) as sandbox:
            drawn.append(sandbox.exec(command, check=True).stdout.splitlines()[:2])
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]
