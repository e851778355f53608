"""What a learner wrote, under the project's own tests: the first failure, explained.

    python -m tests.learner 4 DIR       (python -m levels check 4 --mine DIR calls it)
        ok       only full blocks are found                                  the tests that pass, as sentences
        FAILED   a refused call changes nothing                              what should hold
                 the shortest way to see it, your line, what it may mean

The learner's files stand in the place of the real ones from the first import on. Tests come in the order of the
exercise, the first failure ends it, and hypothesis has made it small by then. A call that never comes back is ended by
the processor time it takes, so that a busy machine is no fault of the learner's."""

import linecache
import os
import re
import signal
import sys
import textwrap
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from levels.exercises import exercise_of, found, is_open

from .swap import Swap

TICK_S, MOST_TICKS = 1.0, 3
PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout", "no:cacheprovider", "no:terminal")
OPTIONS = ["-x", "--timeout=120", *(word for name in PLUGINS for word in ("-p", name))]
OPTIONS += ["--override-ini=addopts=--import-mode=importlib"]
MOST_SHRINKING_S = 10
WIDTH, MOST_LINES, LONGEST_LINE = 112, 40, 300
NOISE = ("Falsifying example", "Failing test case", "You can reproduce", "Explanation", "state = ", "teardown()", ")")
UNNAMED = re.compile(r"Draw \d+: [\d\[\], ]*$")  # how much of something, and nothing says of what
PYTEST_S_OWN = ("+ ", "Use -v", "False", "(not tensor")
SHAPELESS = re.compile(r"params=SamplingParams\((?:[^()]|\(\))*\),? ?")  # longer than what matters
SEQUENCE = re.compile(r"Sequence\(.*?tokens=(\[[^\]]*\]).*")  # of all that a sequence is, what tells it from others
PASSED, FAILED = 0, 1


class StuckError(BaseException):
    """A learner's function that does not come back; no Exception, so that nobody tries it again to make it smaller."""


class Mine:
    """A learner's file of one part."""

    def __init__(self, part, folder):
        self.part, self.path = part, folder / part.name
        self.text = self.path.read_text(encoding="utf-8")

    def complaint(self):
        """What can be said without running it; None if there is nothing."""
        try:
            functions = found(self.text, self.part.holes)
        except SyntaxError as error:
            return f"{self.path.name}, line {error.lineno}: Python cannot read this: {error.msg}\n    {error.text}"
        except LookupError as error:
            return f"{self.path.name}: {error.args[0]} any more; it is one of those you write, keep its name"
        if unwritten := [name for name, function in functions if is_open(function)]:
            names, verb = " and ".join(unwritten), "are" if len(unwritten) > 1 else "is"
            return f"{self.path.name}: {names} {verb} still to be written; TASK.md says what it has to do"
        return None


class Judge:
    """A pytest plugin: passes are sentences, the first failure is a page. `tests` are FILE or "FILE -k WORD"."""

    def __init__(self, tests, hints, paths):
        self.tests = [(file, word) for file, _, word in (test.partition(" -k ") for test in tests)]
        self.hints, self.paths = hints, paths
        self.said, self.num_passed = set(), 0

    def place(self, item):
        """The first of the tests that an item belongs to; None if there is none."""
        matches = [item.nodeid.startswith(file) and word in item.nodeid for file, word in self.tests]
        return matches.index(True) if True in matches else None

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if self.place(item) is not None), key=self.place)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            print("\n".join(self.explain(item, smallest(call.excinfo.value))))
        elif report.when == "call":
            self.num_passed += 1
            if (text := sentence(item)) not in self.said:
                print(f"  ok      {text}", flush=True)
            self.said.add(text)
        return report

    def pytest_collectreport(self, report):
        if report.failed:
            print(f"  FAILED  your file cannot be imported\n{textwrap.indent(str(report.longrepr), '    ')}")

    def pytest_configure(self):
        """A learner would rather see a short history now than the shortest in five minutes."""
        from hypothesis.internal.conjecture import engine

        engine.MAX_SHRINKING_SECONDS = MOST_SHRINKING_S

    def pytest_assertrepr_compare(self, op, left, right):
        """Two lists of lines, as golden traces are: where they part."""
        if op != "==" or not all(isinstance(x, list) and x and isinstance(x[0], str) for x in (left, right)):
            return None
        pairs = enumerate(zip(left, right, strict=False))  # columns may be wider, which is no difference
        n = next((i for i, (a, b) in pairs if a.split() != b.split()), min(len(left), len(right)))
        return ["the steps are not those on the page", f"        {right[0]}"] + [
            f"{name}  {lines[n] if n < len(lines) else '(nothing more)'}"
            for name, lines in (("yours ", left), ("due   ", right))
        ]

    def explain(self, item, error):
        test, page = sentence(item), page_of(item)
        claim, facts = read_message(error)
        yield f"\n  FAILED  {claim or test}"
        if claim and claim != test:
            yield from paragraph("shown by", [test])
        yield from paragraph("the page", [f"{page}", *page.read_text().split("\n\n")[0].splitlines()] if page else [])
        yield from paragraph("the world", world_of(item))
        yield from paragraph("the shortest way to see it", history(error))
        yield from paragraph("what came out", facts)
        yield from paragraph("your line", self.where(error))
        happened, tested = f"{claim} {error}", f"{test} {test.replace(' ', '_')}"  # what happened says more
        meant = [hint for text in (happened, tested) for key, hint in self.hints.items() if key in text]
        yield from paragraph("what it may mean", meant[:1])

    def where(self, error):
        """The last line of the learner's that was being run, if one was."""
        traceback, lines = error.__traceback__, []
        while traceback:
            code, number = traceback.tb_frame.f_code, traceback.tb_lineno
            if code.co_filename in self.paths:
                path = Path(code.co_filename)
                lines = [f"{path.name}:{number}, in {code.co_name}: {linecache.getline(str(path), number).strip()}"]
            traceback = traceback.tb_next
        return lines


def sentence(item):
    """test_a_block_comes_back[3] -> a block comes back"""
    if machine := getattr(item, "cls", None):
        return f"whatever happens, in any order: {re.sub('Machine|.TestCase|^Test', '', machine.__name__)}"
    name = item.originalname.removeprefix("test_").replace("_", " ")
    page = page_of(item)
    return f"{name}: {page.stem[3:].replace('_', ' ')}" if page else name


def page_of(item):
    """The golden trace that a test is about, if it is one."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value for value in values if isinstance(value, Path)), None)


def world_of(item):
    """How to read a history of this machine, where it says so."""
    from hypothesis.stateful import RuleBasedStateMachine

    machines = {f"{each.__name__}.TestCase": each for each in RuleBasedStateMachine.__subclasses__()}
    world = getattr(machines.get(getattr(item.cls, "__name__", "")), "WORLD", None)
    return [world] if world else []


def smallest(error):
    """Of several failures that hypothesis found, the one with the shortest history."""
    if isinstance(error, BaseExceptionGroup):
        return min(map(smallest, error.exceptions), key=lambda each: sum(map(len, history(each))))
    return error


def history(error):
    """What hypothesis wrote down: the calls that lead to the failure, and what was drawn for them."""
    notes = re.sub(r"\n +", " ", "\n".join(getattr(error, "__notes__", ())))  # a long value is spread over lines
    lines = [brief(line).removeprefix("state.") for line in notes.splitlines()]
    lines = [line for line in lines if not line.startswith(NOISE) and not UNNAMED.match(line)]
    return [shorten(line) for line in lines if line.strip() and line not in asides()]


def brief(line):
    return SEQUENCE.sub(r"the one with tokens \1", SHAPELESS.sub("", line))


def shorten(line):
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


def asides():
    """The calls of invariants, which change nothing."""
    from hypothesis.stateful import RuleBasedStateMachine  # late: pytest wants to import it first

    members = [member for machine in RuleBasedStateMachine.__subclasses__() for member in vars(machine).values()]
    return {f"{member.__name__}()" for member in members if hasattr(member, "hypothesis_stateful_invariant")}


def read_message(error):
    """(the sentence that was broken, if the test has one; the facts beside it)"""
    if isinstance(error, StuckError):
        return str(error), []
    first, *rest = [*str(error).splitlines(), ""]
    if not isinstance(error, AssertionError | pytest.fail.Exception):
        return f"{type(error).__name__}: {first}", []
    if first.startswith(("assert ", "the steps")):
        return "", [first.removeprefix("assert "), *rest]
    claim, _, facts = first.partition(": {")
    rest = [line.strip().removeprefix("assert ") for line in rest]
    return claim, [*(["{" + facts] if facts else []), *(line for line in rest if not line.startswith(PYTEST_S_OWN))]


def paragraph(title, lines):
    lines = [part for line in lines if line.strip() for part in wrap(line)]
    if lines:
        more = [f"... and {len(lines) - MOST_LINES} lines more"] if len(lines) > MOST_LINES else []
        yield f"\n          {title}"
        yield from (f"            {line}" for line in [*lines[:MOST_LINES], *more])


def wrap(line):
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ")


@contextmanager
def watched(paths):
    """Inside, a call of the learner's that takes more than a few seconds of the processor raises."""
    seen = [None, 0]

    def tick(signum, frame):
        inner = outer = None
        while frame:
            if frame.f_code.co_filename in paths:
                inner, outer = inner or frame, frame
            frame = frame.f_back
        seen[:] = [outer, seen[1] + 1] if outer is seen[0] else [outer, 1]
        if outer and seen[1] > MOST_TICKS:
            seen[:] = [None, 0]
            raise StuckError(f"{inner.f_code.co_name} does not come back: it goes round in line {inner.f_lineno}")

    signal.signal(signal.SIGPROF, tick)
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def put_in_place(mine):
    """From here on the library and the levels are imported anew, with these files in the place of theirs."""
    sys.meta_path[:0] = [Swap(each.part.module, each.path, each.text) for each in mine]
    for name in [name for name in sys.modules if name.split(".")[0] in ("minipaged", "levels")]:
        del sys.modules[name]


def main(number, folder):
    exercise = exercise_of(number)
    mine = [Mine(part, folder) for part in exercise.PARTS]
    ready = list(takewhile(lambda each: each.complaint() is None, mine))
    put_in_place(ready)
    judge = Judge([test for each in ready for test in each.part.tests], exercise.HINTS, {str(m.path) for m in mine})
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever else is installed would only take time
    if ready:
        print("  the first failure ends it; to find it and make it small takes seconds, or half a minute", flush=True)
    with watched(judge.paths):
        if ready and pytest.main([*OPTIONS, *{file: None for file, _ in judge.tests}], plugins=[judge]) != PASSED:
            return FAILED
    if len(ready) < len(mine):
        print(f"  TO DO   {mine[len(ready)].complaint()}")
        return FAILED
    print(f"\n{judge.num_passed} tests passed: yours does what the repository's does. Compare the two.")
    return PASSED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
