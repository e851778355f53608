"""What was decided and what it cost, step by step."""

from .steps import Occupancy, StepRecord, StepTrace

__all__ = ["Occupancy", "StepRecord", "StepTrace"]
