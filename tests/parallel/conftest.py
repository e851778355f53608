"""One crew for all tests of this folder."""

import pytest

from tests.parallel.crew import Crew


@pytest.fixture(scope="session")
def crew():
    crew = Crew()
    yield crew
    crew.close()
