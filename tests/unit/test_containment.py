"""What can be set about containment, and what a host says of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from torpor.errors import InvalidRequest
from torpor.host.containment import ContainmentConfig, contain, find_groups, sweep_groups
from torpor.host.keeper import remove_groups
from torpor.storage.layout import Layout

MOUNTED = "30 1 0:30 / /groups rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TORPOR_JAIL", "on", "it can be auto or off"),
        ("TORPOR_CGROUPS", "2", "it can be auto or off"),
        ("TORPOR_UID_BASE", "0", "1 or more"),
        ("TORPOR_UID_BASE", "2147000000", "a number from 1 to"),
        ("TORPOR_CPU_WEIGHT", "10001", "from 1 to 10000"),
        ("TORPOR_CPU_WEIGHT", "-1", "1 or more"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidRequest, match=says) as caught:
        ContainmentConfig.from_environment()
    assert variable in str(caught.value)


def test_what_is_set_is_taken_and_what_is_not_depends_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ContainmentConfig.from_environment().weight == min(10_000, 100 * (os.cpu_count() or 1))
    for variable, value in (("TORPOR_JAIL", "off"), ("TORPOR_UID_BASE", "5000000"), ("TORPOR_CPU_WEIGHT", "7")):
        monkeypatch.setenv(variable, value)
    assert ContainmentConfig.from_environment() == ContainmentConfig("off", "auto", 5_000_000, 7)


def a_host(root: Path, controllers: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "groups").mkdir()
    (root / "proc/self/mountinfo").write_text(MOUNTED)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "groups/cgroup.controllers").write_text(controllers)
    return root


def test_each_data_directory_has_groups_of_its_own_with_the_weight_that_is_set(tmp_path: Path) -> None:
    root = a_host(tmp_path / "host", "cpu memory pids")
    one, says = find_groups(ContainmentConfig(cpu_weight=7), tmp_path / "one", root)
    other, _ = find_groups(ContainmentConfig(), tmp_path / "other", root)
    assert one is not None
    assert other is not None
    assert one.name != other.name
    assert (one.weight, one.is_whole, says) == (7, True, "limited: processors, memory, processes")


def test_a_host_that_can_limit_only_some_says_what_it_cannot(tmp_path: Path) -> None:
    groups, says = find_groups(ContainmentConfig(), tmp_path, a_host(tmp_path / "host", "pids"))
    assert groups is not None
    assert says == "limited: processes; not, as this host cannot: processors, memory"
    (tmp_path / "none").mkdir()
    assert find_groups(ContainmentConfig(), tmp_path, tmp_path / "none")[0] is None


async def test_who_wants_neither_jail_nor_groups_gets_neither_and_is_told_what_is_left(tmp_path: Path) -> None:
    with capture_logs() as logs:
        contained = await contain(ContainmentConfig("off", "off"), Layout(tmp_path), "qemu-system-none")
    assert [(line["log_level"], line["jail"]) for line in logs] == [("warning", contained.walls.why)]
    assert (contained.walls.jail, contained.groups) == (None, None)
    assert "TORPOR_JAIL is off" in contained.walls.why
    assert "TORPOR_CGROUPS is off" in contained.limits
    assert list(tmp_path.iterdir()) == []


async def test_where_groups_are_made_is_noted_before_there_is_one(tmp_path: Path) -> None:
    contained = await contain(ContainmentConfig("off"), Layout(tmp_path), "qemu-system-none")
    if contained.groups is None:
        pytest.skip("this host lets nobody make control groups")
    noted = Layout(tmp_path).cgroups.read_text().splitlines()
    assert noted == sorted(str(top) for top in contained.groups.tops)
    await contain(ContainmentConfig("off"), Layout(tmp_path), "qemu-system-none")
    assert Layout(tmp_path).cgroups.read_text().splitlines() == noted


@pytest.mark.parametrize("who", ["server", "keeper"])
def test_groups_that_nobody_is_in_are_swept_wherever_they_were_made(tmp_path: Path, who: str) -> None:
    for name in ("torpor-1/left", "torpor-2/left", "torpor-2/used/somebody", "other/left"):
        (tmp_path / name).mkdir(parents=True)
    layout = Layout(tmp_path)
    tops = [tmp_path / name for name in ("torpor-1", "torpor-2", "torpor-3", "other")]
    layout.cgroups.write_text("".join(f"{top}\n" for top in tops))
    sweep_groups(layout) if who == "server" else remove_groups(str(layout.cgroups))
    assert [top.exists() for top in tops] == [False, True, False, True]
    assert [entry.name for entry in (tmp_path / "torpor-2").iterdir()] == ["used"]
    assert (tmp_path / "other/left").exists()  # none of ours, whatever the file says
