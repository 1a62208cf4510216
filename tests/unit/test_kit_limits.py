"""What the kernel lets a process have."""

from __future__ import annotations

import resource
import subprocess
import sys

_PROGRAM = """
import resource
from torpor.kit.limits import allow_many_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))
allow_many_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_server_may_have_as_many_open_files_as_its_owner_allows() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 2048
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["2048", "2048"]
