"""`python -m edgellm ...` is `edgellm ...`."""

import sys

from edgellm.cli import main

if __name__ == "__main__":
    sys.exit(main())
