"""The program that `python3 -c` is given: reads the other modules of this package from its input, and begins.

The input begins with 16 digits, the length in bytes of a JSON list of [name, source], which follows. After it come the
orders that `supervisor` reads. The current folder is not looked into for modules until all of this is imported: a
file there may be named as one of the standard library's.
"""

import json
import os
import sys
import types


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit("the interpreter's program broke off")
        data += piece
    return data


if sys.version_info < (3, 8):  # noqa: UP036 - whatever the guest has
    sys.exit("python3 in this sandbox is older than 3.8")
_here = [sys.path.pop(0)] if sys.path[:1] == [""] else []
_modules = json.loads(_read(int(_read(16))).decode())
sys.modules["torpor_kernel"] = types.ModuleType("torpor_kernel")
for _name, _source in _modules:
    _module = types.ModuleType("torpor_kernel." + _name)
    sys.modules["torpor_kernel." + _name] = _module
    exec(compile(_source, "<torpor_kernel." + _name + ">", "exec", dont_inherit=True), _module.__dict__)  # noqa: S102 - ours
sys.modules["torpor_kernel.supervisor"].main(_here)
