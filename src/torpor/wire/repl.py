"""The JSON of code contexts: `/v1/sandboxes/{id}/repl/sessions`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from torpor.wire.public import MAX_TTL_SECONDS, Env, Strict

# A cell may have so many characters.
MAX_CODE = 1024 * 1024
# What a bundle of results takes up at most, in bytes of JSON.
MAX_RESULT_BYTES = 16 * 1024 * 1024
# And all of a cell's.
MAX_RESULTS_BYTES = 32 * 1024 * 1024
PYTHON = "python"
# What a language may be called.
LANGUAGES = {"python": PYTHON, "python3": PYTHON, "py": PYTHON}

Seconds = Annotated[float, Field(gt=0, le=MAX_TTL_SECONDS, allow_inf_nan=False)]


class NewSession(Strict):
    """`POST .../repl/sessions`. `cwd`: where its interpreter starts. `env` is added to the sandbox's own variables."""

    language: str = PYTHON
    cwd: str | None = Field(default=None, max_length=4096)
    env: Env = Field(default_factory=dict)
    user: str | None = Field(default=None, min_length=1, max_length=64)

    @field_validator("language")
    @classmethod
    def _is_known(cls, value: str) -> str:
        language = LANGUAGES.get(value.lower())
        if language is None:
            raise ValueError(f"language has to be python; there is no interpreter for {value[:64]!r}")
        return language


class SessionView(BaseModel):
    """A code context: an interpreter that keeps its variables from cell to cell.

    `status`: `idle`, `busy` (a cell runs) or `ended`; then `exit_code` says how, and `signal` what ended it, if one
    did.
    """

    id: str
    sandbox_id: str
    language: str
    status: Literal["idle", "busy", "ended"]
    user: str | None = None
    created_at: datetime
    exit_code: int | None = None
    signal: str | None = None


class SessionList(BaseModel):
    """`GET .../repl/sessions`: those that have not ended, the oldest first."""

    items: list[SessionView]


class RunCode(Strict):
    """`POST .../repl/sessions/{sid}/run` and `.../run/stream`: one cell.

    `timeout_seconds`, or `timeout_ms`, bounds its running time (None: no bound).
    """

    code: str = Field(max_length=MAX_CODE)
    timeout_seconds: Seconds | None = None
    timeout_ms: Annotated[int, Field(gt=0, le=MAX_TTL_SECONDS * 1000)] | None = None

    @field_validator("code")
    @classmethod
    def _is_text(cls, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("code has half a surrogate pair in it, which is no character") from None
        if "\0" in value:
            raise ValueError("code has a NUL character in it, which no program can have")
        return value

    @model_validator(mode="after")
    def _says_it_once(self) -> RunCode:
        if self.timeout_ms is not None and self.timeout_seconds is not None:
            raise ValueError("timeout_seconds and timeout_ms cannot be given together")
        return self

    @property
    def timeout_s(self) -> float | None:
        """The bound that was given, in seconds."""
        return self.timeout_seconds if self.timeout_ms is None else self.timeout_ms / 1000


class CellEnd(BaseModel):
    """How a cell ended: the `exit` event of `.../run/stream`.

    `exit`: 0, or 1 if it raised, 130 if it was interrupted, or what it gave to `sys.exit`. `error` is the traceback of
    what it raised and `error_name` the exception's name. `truncated`: a result was too large and is left out.
    `execution_count`: the number of the cell in its context, from 1 on.
    """

    exit: int
    error: str | None = None
    error_name: str | None = None
    duration_ms: int
    execution_count: int
    truncated: bool = False


class CellAnswer(CellEnd):
    """What a cell wrote, and showed: `results` are bundles of texts by MIME type; bytes such as a PNG's are base64.

    `truncated`: a result was left out, or a stream was cut at 32 MiB.
    """

    stdout: str = ""
    stderr: str = ""
    results: list[dict[str, str]] = Field(default_factory=list)
