"""The agent's event loop."""

from __future__ import annotations

import os

from torpor_guest.loop import IN, Loop


def test_a_timer_of_months_does_not_keep_the_loop_from_waiting() -> None:
    loop = Loop()
    reader, writer = os.pipe()
    loop.after(90 * 86_400, lambda: None)
    loop.watch(reader, IN, lambda _: loop.stop())
    os.write(writer, b"x")
    loop.run()
    os.close(reader)
    os.close(writer)
