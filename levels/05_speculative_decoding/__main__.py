"""python -m levels.05_speculative_decoding: this level's lesson, or your own prompts on it."""

from levels.lesson import main
from minipaged.cli import leave

if __name__ == "__main__":
    leave(lambda: main(5))
