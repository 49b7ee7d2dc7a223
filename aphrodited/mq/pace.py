"""How long a step may take before its standstill is suspicious, from the speed that this engine has shown."""

from __future__ import annotations

from aphrodited.interfaces import StepPlan

ASSUMED_TOKEN_S = 0.01  # before anything was measured
PATIENCE = 4.0  # a step may take so many times what it is expected to take
FORGETTING = 0.98  # per step: how fast a slow moment is forgiven


class StepPace:
    """Learns seconds per token, remembering slow steps longer than fast ones."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._token_s = ASSUMED_TOKEN_S

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """A step of that plan took so long."""
        shown_s = elapsed_s / max(plan.num_tokens, 1)
        self._token_s = max(shown_s, self._token_s * FORGETTING)

    def allowance_s(self, plan: StepPlan) -> float:
        """The longest standstill of a step of that plan, never below the configured least."""
        return max(self._least_s, PATIENCE * self._token_s * plan.num_tokens)
