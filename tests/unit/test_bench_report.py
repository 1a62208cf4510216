"""What a run found: its table, its JSON and its picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from torpor.bench.drawing import Scale, linear, logarithmic
from torpor.bench.figures import Figure, Floor
from torpor.bench.machine import Machine
from torpor.bench.plot import check_name, draw
from torpor.bench.report import COLUMNS, Report
from torpor.errors import InvalidRequest
from torpor.wire.public import TemplateView

NOW = datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
GUEST = TemplateView(
    name="agent",
    created_at=NOW,
    fingerprint="qemu-microvm 10.0.2 tcg max",
    cpu=1,
    memory_mb=512,
    disk_gb=8,
    accelerator="tcg",
    size_bytes=1,
    cold_boot_ms=4000,
)
MACHINE = Machine("A <fast> CPU & more", 2, 24.0, "6.18", "3.11", "ext4", "volume", "qemu-microvm 10.0.2")

WAKE = Figure("wake", "wake", "ms", (90.0, 100.0, 160.0), Floor("VMM alone", (50.0,)))
SLOW = Figure("wake-exec", "wake + first exec", "ms", (1234.0,))
SIZED = tuple(
    Figure(
        f"hibernate-{mib}", f"hibernate, {mib} MiB dirty", "ms", (mib + 40.0, mib + 50.0), Floor("w", (mib + 9.0,)), at
    )
    for mib, at in ((1, 9.5), (64, 73.0))
)
ROW = Figure("checkpoints", "30 checkpoints", "ms", tuple(float(number) for number in range(60, 90)))
MEMORY = Figure("child-memory", "memory of a child", "MiB", (54.0,), note="of 8")


def report(figures: Sequence[Figure], machine: Machine | None = MACHINE, **more: object) -> Report:
    told = {"failed": {}, "left_out": ()} | more
    return Report(tuple(figures), guest=GUEST, machine=machine, at=NOW, took_s=61.4, **told)  # type: ignore[arg-type]


def test_a_row_has_the_statistics_the_floor_and_the_verdict() -> None:
    row = dict(zip(COLUMNS, report([WAKE]).rows()[0], strict=True))
    assert row == {
        "figure": "wake",
        "n": "3",
        "p50": "100",
        "p90": "",
        "p99": "",
        "unit": "ms",
        "floor": "50.0 VMM alone",
        "ratio": "2.00",
        "target": "p50 ≤ 150",
        "verdict": "met",
    }


def test_the_verdict_counts_what_was_met_missed_and_left_open() -> None:
    create = Figure("create", "create", "ms", (100.0,))
    assert report([WAKE, SLOW]).verdict() == "1 of 2 targets are met, 1 missed."
    assert report([create]).verdict() == "1 of 2 targets are met, 0 missed, 1 had too few rounds to say."


def test_circumstances_name_guest_machine_storage_and_time() -> None:
    told = report([WAKE]).circumstances()
    assert told["guest"] == "agent: 1 cpu, 512 MiB memory, 8 GiB disk"
    assert told["vmm"] == "qemu-microvm 10.0.2"
    assert told["processor"] == "A <fast> CPU & more, 2 cores"
    assert told["storage"] == "ext4; a volume whose files share blocks (XFS)"
    assert told["taken"] == "2030-01-01 12:30 UTC, in 61 s"
    assert "processor" not in report([WAKE], None).circumstances()


def test_remarks_tell_what_failed_what_was_left_out_and_what_has_to_be_known() -> None:
    told = report([MEMORY], failed={"fork": "there is no room"}, left_out=("disk",)).remarks()
    assert told[:2] == [("memory of a child", "of 8"), ("fork", "failed: there is no room")]
    assert told[2][0] == "disk"


def test_the_json_is_stable_and_has_every_value() -> None:
    said = json.loads(json.dumps(report([WAKE, MEMORY], failed={"fork": "no room"}).as_json()))
    assert list(said) == [
        *("format", "torpor", "taken_at", "took_s", "machine", "guest", "figures", "failed", "left_out"),
    ]
    wake = said["figures"]["wake"]
    assert (wake["values"], wake["p50"], wake["p90"], wake["most"]) == ([90.0, 100.0, 160.0], 100.0, None, 160.0)
    assert (wake["floor"], wake["ratio"]) == ({"title": "VMM alone", "p50": 50.0}, 2.0)
    assert wake["targets"] == [{"statistic": "p50", "limit": 150, "at_least": False, "met": True}]
    assert said["machine"]["ground"] == "volume"
    assert said["failed"] == {"fork": "no room"}


@pytest.mark.parametrize(
    "figures",
    [(WAKE, SLOW, *SIZED, ROW, MEMORY), (WAKE,), SIZED, (ROW,), (MEMORY,), ()],
    ids=["all", "durations", "sizes", "row", "no durations", "nothing"],
)
def test_the_plot_is_well_formed_and_inside_its_page(figures: tuple[Figure, ...]) -> None:
    root = xml.fromstring(draw(report(figures)))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert any("A <fast> CPU & more" in (element.text or "") for element in texts)
    for element in texts:
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height
    for element in root.iter():
        if element.tag.endswith("}polyline"):
            for place in element.attrib["points"].split():
                x, y = map(float, place.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_the_plot_draws_floors_and_axes_with_their_units() -> None:
    drawn = draw(report([WAKE, *SIZED]))
    root = xml.fromstring(drawn)
    words = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert {"milliseconds", "MiB written, the guest's own included", "floor", "wake"} <= set(words)
    dashed = [element for element in root.iter() if element.attrib.get("stroke-dasharray") == "5 3"]
    # In the legend and at the bar of wake; in the legend and through the points of the sizes.
    assert len(dashed) == 4


def test_a_value_is_placed_by_its_scale_and_never_outside() -> None:
    scale = Scale(1.0, 1000.0, 100.0, 400.0, log=True)
    assert [scale.place(value) for value in (-5.0, 1.0, 10.0, 1000.0, 5000.0)] == pytest.approx(
        [100, 100, 200, 400, 400]
    )
    assert scale.ticks() == pytest.approx([1, 10, 100, 1000])
    upwards = Scale(0.0, 10.0, 300.0, 100.0)
    assert upwards.place(5.0) == pytest.approx(200)
    assert upwards.ticks() == pytest.approx([0, 2, 4, 6, 8, 10])


@pytest.mark.parametrize("values", [[], [0.0], [0.3], [12345.0, 2.0]])
def test_scales_are_of_some_length_whatever_they_are_to_hold(values: list[float]) -> None:
    for scale in (linear(values, 0.0, 100.0), logarithmic(values, 0.0, 100.0)):
        assert scale.high > max([*values, scale.low])
        assert len(scale.ticks()) >= 2


def test_a_plot_of_another_kind_or_in_no_folder_is_refused_before_the_run(tmp_path: Path) -> None:
    check_name(tmp_path / "figures.SVG")
    with pytest.raises(InvalidRequest, match="does not end in"):
        check_name(tmp_path / "figures.png")
    with pytest.raises(InvalidRequest, match="there is no folder"):
        check_name(tmp_path / "nowhere" / "figures.svg")
