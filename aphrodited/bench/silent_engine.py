"""An MQ engine whose backend does nothing at all, not even scheduling: what is left is the transport.

Every unfinished request gets one token a step. `python -m aphrodited.bench.silent_engine FOLDER`, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

from aphrodited.config.schema import MqConfig
from aphrodited.errors import RequestError
from aphrodited.interfaces import EngineStats, ModelFacts, StepPlan
from aphrodited.mq.endpoints import promote
from aphrodited.mq.engine import MQAphroditeEngine
from aphrodited.outputs import FinishReason, TokenOutput
from aphrodited.page import PageWriter
from aphrodited.paths import ModelPaths
from aphrodited.request import EncodeRequest, EngineRequest

MODEL_FOLDER = "m"
MQ = MqConfig(input_hwm=65536, output_hwm=65536)
"""For engine and client: a backend without work runs ahead of any client, and is not to call it stalled."""


class SilentBackend:
    """An EngineBackend."""

    on_plan: Callable[[StepPlan], None] | None = None
    on_progress: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.facts = ModelFacts(
            name="silent",
            max_model_len=1 << 20,
            vocab_size=1 << 17,
            eos_token_ids=(),
            block_size=16,
            num_blocks=1,
            max_num_seqs=1 << 20,
            dtype="none",
            fingerprint="silent",
            deterministic=True,
            backend="silent",
        )
        self._num_left: dict[int, int] = {}

    def add_request(self, key: int, request: EngineRequest) -> None:
        if isinstance(request, EncodeRequest):
            raise RequestError("this engine cannot embed")
        self._num_left[key] = request.sampling_params.max_tokens or 1

    def abort_request(self, key: int) -> bool:
        return self._num_left.pop(key, None) is not None

    def step(self) -> list[TokenOutput]:
        left, outputs = self._num_left, []
        for key, num_left in list(left.items()):
            if num_left > 1:
                left[key] = num_left - 1
                outputs.append(TokenOutput(key, [num_left]))
            else:
                del left[key]
                outputs.append(TokenOutput(key, [num_left], FinishReason.LENGTH))
        return outputs

    def has_unfinished_requests(self) -> bool:
        return bool(self._num_left)

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self._num_left))

    def close(self) -> None:
        """There is nothing to release."""


def main() -> None:
    folder = Path(sys.argv[1])
    with (
        closing(PageWriter(folder / "page")) as page,
        closing(promote(ModelPaths(folder / MODEL_FOLDER))) as generation,
    ):
        engine = MQAphroditeEngine(SilentBackend(), generation, page, MQ)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            engine.request_stop()

        signal.signal(signal.SIGTERM, stop)
        engine.run()


if __name__ == "__main__":
    main()
