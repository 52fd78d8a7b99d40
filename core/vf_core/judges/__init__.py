"""Judges: the base class they are written with, and the built-in ones, `reference` and `rubric`."""

from vf_core.judges.base import Judge, JudgeResponse
from vf_core.tasks.judging import JudgeConfig

__all__ = ["Judge", "JudgeConfig", "JudgeResponse"]
