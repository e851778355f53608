"""python -m levels.02_paged_attention: this level's lesson, or your own prompts on it."""

from levels.lesson import main
from minipaged.cli import leave

if __name__ == "__main__":
    leave(lambda: main(2))
