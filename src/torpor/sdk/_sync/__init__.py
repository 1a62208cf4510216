"""The asynchronous SDK, written by hand. `tools/make_sync.py` makes `torpor.sdk._sync` of it."""
