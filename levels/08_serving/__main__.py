"""python -m levels.08_serving: a server; with prompts, they run on this level as on every other."""

import sys

from levels.lesson import main

if __name__ == "__main__":
    sys.exit(main(8))
