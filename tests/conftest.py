"""How the tests run: the same cases every time, unless `--hypothesis-profile=deep` asks for many new ones."""

import os

import pytest
from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=100, derandomize=True, **COMMON)
settings.register_profile("deep", max_examples=5000, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if not any(os.path.exists(driver) for driver in ("/dev/nvidiactl", "/dev/kfd")):  # asked without importing torch
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: workers share the cores, not each all of them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a loop's threads that are done first do not spin meanwhile


def why_not(marker: str) -> str | None:
    """The reason why tests with this marker cannot run here; None if they can. Only runs that have some pay for it."""
    if marker == "default_model":
        from minipaged.models.hub import cache_dir

        folder = cache_dir() / "smollm2-135m"
        return None if folder.is_dir() else f"{folder} is not there yet: the first run of any level makes it"
    import torch

    return None if torch.cuda.is_available() else "no GPU here"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker in ("default_model", "gpu"):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not(marker)):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
