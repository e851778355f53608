"""The museum shows the mutants there are, as they are."""

import json

from .museum import CAUGHT, PAGE, key, page
from .test_mutants import MACHINES, MUTANTS


def test_the_page_is_what_the_mutants_say():
    assert PAGE.read_text() == page(MUTANTS, json.loads(CAUGHT.read_text())), "write it: python -m tests.museum"


def test_every_mutant_that_a_state_machine_judges_has_its_history():
    judged = {key(mutant) for mutant in MUTANTS if mutant.judge in MACHINES}
    assert set(json.loads(CAUGHT.read_text())) == judged, "look for it: python -m tests.museum --look"
