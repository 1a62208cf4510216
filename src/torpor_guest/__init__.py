"""Torpor's agent inside a guest. Standard library only; imports nothing of the host's package."""

VERSION = "4"
