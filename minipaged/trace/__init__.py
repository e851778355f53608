"""What was decided and what it cost, step by step."""

from .steps import Occupancy, StepRecord, StepTrace, kv_usage

__all__ = ["Occupancy", "StepRecord", "StepTrace", "kv_usage"]
