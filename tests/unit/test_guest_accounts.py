"""Users and groups as the guest's own files tell them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torpor_guest.accounts import Accounts
from torpor_guest.refusal import Refusal

PASSWD = """\
root:x:0:0:root:/root:/bin/bash
# not an entry
ann:x:1000:1000:Ann,,,:/home/ann:/bin/zsh
bare:x:1001:100:::
broken:x:many:1::/:/bin/sh
ann2:x:1000:1000::/elsewhere:/bin/sh
"""
GROUP = """\
root:x:0:
ann:x:1000:
users:x:100:ann,bare
wheel:x:10:root,ann
"""


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    (tmp_path / "passwd").write_text(PASSWD)
    (tmp_path / "group").write_text(GROUP)
    return Accounts(str(tmp_path))


def test_a_user_has_his_groups_home_and_shell(accounts: Accounts) -> None:
    ann = accounts.find("ann")
    assert (ann.uid, ann.gid, ann.groups) == (1000, 1000, (10, 100, 1000))
    assert (ann.home, ann.shell) == (b"/home/ann", b"/bin/zsh")


def test_nobody_named_is_root(accounts: Accounts) -> None:
    assert (accounts.find(None).name, accounts.find(None).groups) == ("root", (0, 10))


def test_a_number_finds_the_first_user_that_has_it(accounts: Accounts) -> None:
    assert accounts.find("1000").name == "ann"


def test_empty_fields_have_defaults(accounts: Accounts) -> None:
    bare = accounts.find("1001")
    assert (bare.home, bare.shell) == (b"/", b"/bin/sh")


@pytest.mark.parametrize("user", ["", "nobody-here", "4242", "broken", "-1", "²", "9" * 5000, "root:x"])
def test_an_unknown_user_is_refused_in_a_sentence(accounts: Accounts, user: str) -> None:
    with pytest.raises(Refusal, match="there is no user") as refused:
        accounts.find(user)
    assert refused.value.code == "invalid_request"


def test_a_changed_file_is_read_again(accounts: Accounts, tmp_path: Path) -> None:
    accounts.find("ann")
    (tmp_path / "new").write_text(PASSWD + "eve:x:1002:1002::/home/eve:/bin/sh\n")
    os.replace(tmp_path / "new", tmp_path / "passwd")
    assert accounts.find("eve").uid == 1002


def test_an_image_without_the_files_still_has_root(tmp_path: Path) -> None:
    accounts = Accounts(str(tmp_path))
    assert accounts.find(None).uid == accounts.find("0").uid == 0
    assert accounts.user_name(7) == accounts.group_name(7) == "7"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("ann", (1000, 1000, (10, 100, 1000))),
        ("ann:users", (1000, 100, (100,))),
        ("1000:7", (1000, 7, (7,))),
        ("4242", (4242, 0, (0,))),
        ("4242:wheel", (4242, 10, (10,))),
        ("root", (0, 0, (0, 10))),
    ],
)
def test_an_image_names_users_and_groups_also_by_numbers_that_are_nobody_s(
    accounts: Accounts, text: str, ids: tuple[int, int, tuple[int, ...]]
) -> None:
    account = accounts.of_image(text)
    assert (account.uid, account.gid, account.groups) == ids


@pytest.mark.parametrize(
    "text", ["nobody-here", "ann:nothing", "ann:", ":users", "4294967295", "9" * 20, "1:4294967295"]
)
def test_an_image_s_user_that_cannot_be_is_refused(accounts: Accounts, text: str) -> None:
    with pytest.raises(Refusal, match="there is no"):
        accounts.of_image(text)
