"""`python -m nfk`: the command `nfk`."""

import sys

from nfk.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
