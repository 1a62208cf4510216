"""The interpreter of a code context. It runs in a guest, on any Python there from 3.8 on: standard library only.

Its source is sent to the guest as the first input of a command, so no file of it is there. Nothing imports it here.
"""
