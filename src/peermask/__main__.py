"""`python -m peermask`."""

from peermask.cli.main import main

main()
