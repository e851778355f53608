"""python -m levels.04_prefix_caching: this level's lesson, or your own prompts on it."""

import sys

from levels.lesson import main

if __name__ == "__main__":
    sys.exit(main(4))
