"""Scores without a judge model: pure functions from an answer to a verdict that names the rule behind it."""

from evaluation.scorers.registry import SCORERS, Scorer, ScorerName, choose_scorers
from evaluation.scorers.verdict import Verdict

__all__ = ["SCORERS", "Scorer", "ScorerName", "Verdict", "choose_scorers"]
