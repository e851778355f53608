"""How the tests run: the same cases every time, unless `--hypothesis-profile=deep` asks for many new ones."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=100, derandomize=True, **COMMON)
settings.register_profile("deep", max_examples=5000, print_blob=True, **COMMON)
settings.load_profile("ci")

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: workers share the cores, not each all of them
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def default_model_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minipaged"
    return Path(os.environ.get("MINIPAGED_CACHE") or cache) / "smollm2-135m"


def why_not(marker: str) -> str | None:
    """The reason why tests with this marker cannot run here; None if they can."""
    if marker == "default_model" and not (default_model_folder() / "config.json").is_file():
        return f"the default model is not in {default_model_folder()}; running any level once fetches it"
    if marker == "gpu":
        import torch  # only a run that has such tests pays for it

        return None if torch.cuda.is_available() else "no GPU here"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker in ("default_model", "gpu"):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not(marker)):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
