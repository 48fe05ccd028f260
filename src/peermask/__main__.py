"""`python -m peermask`."""

from peermask.cli.entry import main

main()
