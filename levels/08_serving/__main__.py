"""python -m levels.08_serving: a server; with prompts, they run on this level as on every other."""

from levels.lesson import main
from minipaged.cli import leave

if __name__ == "__main__":
    leave(lambda: main(8))
