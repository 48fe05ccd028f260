"""Where the command `peermask` begins: before anything heavy is imported, so that Ctrl-C is quiet from the start."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from peermask.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
