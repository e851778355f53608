"""A body is refused by its first fault, however many it has."""

import pytest
from pydantic import ValidationError

from minipaged.serving.protocol import CompletionRequest


@pytest.mark.parametrize("prompt", [[1.5] * 1000, ["a", *[1] * 1000], [[1.5] * 1000]])
def test_a_thousand_faults_are_few(prompt: list[object]) -> None:
    with pytest.raises(ValidationError) as refusal:
        CompletionRequest.model_validate({"prompt": prompt})
    assert refusal.value.error_count() < 10, "each written down, a body of 8 MiB would take gigabytes"
