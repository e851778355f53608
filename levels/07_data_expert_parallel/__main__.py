"""python -m levels.07_data_expert_parallel: this level's lesson, or your own prompts on it."""

import sys

from levels.lesson import main

if __name__ == "__main__":
    sys.exit(main(7))
