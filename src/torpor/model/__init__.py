"""Values and rules: frozen dataclasses, enums, typed ids. No I/O, no clock, no asyncio."""
