"""Fakes for tests, and the suite that every VMM driver passes."""
