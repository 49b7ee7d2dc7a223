"""`aphrodited` with pretending workers: the real supervision, nothing behind it."""

import sys

from aphrodited.cli.aphrodited import main

if __name__ == "__main__":
    sys.exit(main(launcher_module="fake_launcher"))
