"""The program: `edgellm ...`, or `python -m edgellm ...`."""

import gc
import sys


def main() -> int:
    """Run the command line of this process; returns the exit code, whatever happens."""
    gc.disable()  # see cli.main
    try:
        from edgellm.cli import main as command

        return command()
    except KeyboardInterrupt:  # before there was a command
        return 130
    finally:
        # What is left goes with the process. Python would look through all of it twice more: a tenth of a second.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
