"""`python -m torpor.cli`."""

from torpor.cli import main

main()
