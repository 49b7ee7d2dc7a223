"""One request's outputs on their way from an engine to the coroutine that awaits them.

Many times cheaper per token than an asyncio.Queue: one list, and a future only while somebody waits. Bounded:
a consumer that does not read has its stream ended, not its memory filled. Knows no transport and no text.
"""

from __future__ import annotations

import asyncio

from aphrodited.errors import RequestAbortedError, RequestError
from aphrodited.outputs import EmbeddingOutput, FinishReason, TokenOutput


class TokenStream:
    """Outputs of one request, in order, until its one terminal event: a finish reason, or an error that `get` raises.

    Producer and consumer live on one event loop. `put` and `fail` after the terminal event do nothing, so
    whatever races with the end of a request cannot end it twice.
    """

    __slots__ = ("_error", "_outputs", "_waiter", "ended", "max_unread", "number", "request_id")

    def __init__(self, number: int, request_id: str, max_unread: int) -> None:
        self.number = number
        self.request_id = request_id
        self.max_unread = max_unread
        self.ended = False
        self._outputs: list[TokenOutput] = []
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: TokenOutput) -> bool:
        """Hand over one output. False if the consumer is too far behind: the stream has failed and takes no more."""
        if self.ended:
            return True
        if len(self._outputs) >= self.max_unread:
            self.fail(
                RequestError(
                    f"request {self.request_id} was aborted: {self.max_unread} outputs wait to be read",
                    code="CONSUMER_STALLED",
                )
            )
            return False
        if output.finish_reason is not None:
            if output.finish_reason is FinishReason.ERROR:
                code, message = output.error or ("internal_error", "the engine gave no reason")
                self.fail(RequestError(message, param=output.error_param, code=code))
                return True
            self.ended = True
        self._outputs.append(output)
        if self._waiter is not None:
            self._wake()
        return True

    def fail(self, error: BaseException) -> None:
        """End the stream; the consumer first gets what came before."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._wake()

    async def get(self) -> TokenOutput:
        """Everything that has come since the last call, as one output. Raises the error that ended the stream."""
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        return outputs[0] if len(outputs) == 1 else _joined(outputs)

    async def embedding(self, prompt_token_ids: list[int]) -> EmbeddingOutput:
        """The one output of an EncodeRequest. Raises the error that ended the stream."""
        output = await self.get()
        if output.embedding is None:
            raise RequestAbortedError("the request was aborted before its embedding was made")
        return EmbeddingOutput(self.request_id, prompt_token_ids, output.embedding, output.num_cached_tokens)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


def _joined(outputs: list[TokenOutput]) -> TokenOutput:
    """Several outputs of one sequence as one: a consumer that fell behind is served by the batch."""
    first, last = outputs[0], outputs[-1]
    token_ids: list[int] = []
    for output in outputs:
        token_ids += output.token_ids
    logprobs = None
    if first.logprobs is not None:
        logprobs = [logprob for output in outputs for logprob in output.logprobs or ()]
    return TokenOutput(
        first.key,
        token_ids,
        last.finish_reason,
        last.stop_token_id,
        logprobs,
        first.num_cached_tokens,
        embedding=last.embedding,
        prompt_logprobs=first.prompt_logprobs,
    )
