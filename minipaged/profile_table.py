"""A profile as a table: a line for each kind of work, its seconds, its share of the run, and what a step of it took.

    where the time went           s   share   ms a step
    products                   1.93   71.2%        10.1
    attention                  0.31   11.4%         1.6
    ...
    stopwatches took 0.4 % of it: 31,800 laps of 0.31 us

Invariant: nobody who does not ask for a profile has any part of it. (For all levels.)"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .driver import AnyEngine
from .report import Json, Outcome

if TYPE_CHECKING:
    from .profile import Profile

Show = Callable[[Outcome, Console], None]


def watch_time(engine: AnyEngine, *, wished: bool) -> Show:
    """Watch the engine from here on, if that is wished; returns what shows, after its run, where the time went."""
    if not wished:
        return lambda outcome, console: None
    from .profile import Profile  # late: it brings torch

    profile = Profile(engine)
    return lambda outcome, console: console.print(make_profile_table(profile, outcome.document["metrics"]))


def make_profile_table(profile: "Profile", metrics: Json) -> Table:
    """metrics: of the run's document."""
    table = Table(title="where the time went", title_justify="left", title_style="bold", show_footer=True)
    table.add_column("", f"all {metrics['steps']} steps", no_wrap=True)
    table.add_column("s", f"{metrics['wall_s']:.2f}", justify="right")
    table.add_column("share", "100.0%", justify="right")
    table.add_column("ms a step", f"{per_step(metrics['wall_s'], metrics)}", justify="right")
    for name, seconds, share in profile.lines(metrics["wall_s"]):
        table.add_row(name, f"{seconds:.2f}", f"{share:.1%}", per_step(seconds, metrics))
    share = profile.cost_s / metrics["wall_s"] if metrics["wall_s"] else 0.0
    table.caption = f"the stopwatches themselves took {share:.2%} of it"
    return table


def per_step(seconds: float, metrics: Json) -> str:
    return f"{1e3 * seconds / metrics['steps']:.2f}" if metrics["steps"] else "-"
