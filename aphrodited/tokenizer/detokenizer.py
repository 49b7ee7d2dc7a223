"""From token ids to a growing answer: text character by character, stop strings, RequestOutput.

    IncrementalDetokenizer    token ids to text; a character appears when its last byte has come
    OutputBuilder             TokenOutput deltas of one sequence to RequestOutputs

Constant work per token, whatever came before. Knows no transport: who generates the tokens, and who must be told that
a stop string ended the text, is the caller's business.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from aphrodited.outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs, TokenOutput
from aphrodited.sampling_params import SamplingParams
from aphrodited.tokenizer.stop_strings import StopChecker
from aphrodited.tokenizer.tokenizer import Tokenizer

_make_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Text of tokens that come one at a time; the pieces joined are what `Tokenizer.decode` gives for them all.

    continues_text: the tokens follow others, so a first token's leading space is part of the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _make_decoder("replace")
        self._drops_space = tokenizer.begins_with_space and not continues_text

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        text = self._decoder.decode(self._tokenizer.text_bytes(token_id, self._skip_special_tokens))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """The rest, after the last token: U+FFFD for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)


class _Addition(msgspec.Struct, gc=False):
    """What one TokenOutput adds: a text, how many of its tokens count, and how the sequence ended, if it did."""

    text: str
    num_tokens: int
    finish_reason: FinishReason | None
    stop_reason: int | str | None


class OutputBuilder:
    """Builds one sequence's answer. The answers' lists are shared and grow; their new_* fields are their own.

    Without a tokenizer, or with params.detokenize off, answers carry token ids only. `prompt_token_ids` is
    handed on, not copied.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        self._num_cached_tokens = 0
        self._finished = False
        self._stopped_by_string = False
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._text = _TextBuilder(params, tokenizer) if tokenizer is not None and params.detokenize else None

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def token_ids(self) -> list[int]:
        """Every token so far, shown or held back; it grows with each `add`."""
        return self._token_ids

    @property
    def stopped_by_string(self) -> bool:
        """A stop string ended the answer: the engine does not know, and must be told to abort the sequence."""
        return self._stopped_by_string

    def add(self, token_output: TokenOutput) -> RequestOutput:
        """The answer with one step's tokens added. Must not be called again after a finished one."""
        assert not self._finished, "a finished sequence takes no more tokens"
        added = self._text.add(token_output) if self._text is not None else _ids_only(token_output)
        self._stopped_by_string = isinstance(added.stop_reason, str)
        self._finished = added.finish_reason is not None
        if added.finish_reason is FinishReason.STOP and token_output.stop_token_id in self._stop_token_ids:
            added.stop_reason = added.stop_reason or token_output.stop_token_id
        self._num_cached_tokens = self._num_cached_tokens or token_output.num_cached_tokens
        self._prompt_logprobs = self._prompt_logprobs or token_output.prompt_logprobs
        new_token_ids = token_output.token_ids[: added.num_tokens]
        self._token_ids += new_token_ids
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[
                CompletionOutput(
                    text=self._text.text if self._text is not None else "",
                    token_ids=self._token_ids,
                    logprobs=self._logprobs,
                    finish_reason=added.finish_reason,
                    stop_reason=added.stop_reason,
                    new_text=added.text,
                    new_token_ids=new_token_ids,
                    new_logprobs=self._add_logprobs(token_output.logprobs, added.num_tokens),
                )
            ],
            finished=self._finished,
            num_cached_tokens=self._num_cached_tokens,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _add_logprobs(self, logprobs: list[TokenLogprobs] | None, num_tokens: int) -> list[TokenLogprobs] | None:
        if self._logprobs is None or logprobs is None:
            return None
        new_logprobs = logprobs[:num_tokens]
        self._logprobs += new_logprobs
        return new_logprobs


def _ids_only(token_output: TokenOutput) -> _Addition:
    return _Addition("", len(token_output.token_ids), token_output.finish_reason, None)


class _TextBuilder:
    """The text of one sequence: `text` so far, and each step's addition to it."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.text = ""
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, continues_text=True
        )
        self._has_stops = bool(params.stop)
        self._stops = StopChecker(params.stop, include_stop=params.include_stop_str_in_output)
        self._shows_stop_token = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def add(self, token_output: TokenOutput) -> _Addition:
        added = self._take_tokens(token_output) if self._has_stops else self._take_all(token_output)
        self.text += added.text
        return added

    def _take_all(self, token_output: TokenOutput) -> _Addition:
        """What `_take_tokens` would give, in half of the time, if no text can stop the answer."""
        text = "".join(map(self._detokenizer.push, self._shown(token_output)))
        if token_output.finish_reason is not None:
            text += self._detokenizer.flush()
        return _Addition(text, len(token_output.token_ids), token_output.finish_reason, None)

    def _take_tokens(self, token_output: TokenOutput) -> _Addition:
        pieces: list[str] = []
        for place, token_id in enumerate(self._shown(token_output), start=1):
            self._num_tokens += 1
            found = self._stops.push(self._detokenizer.push(token_id), may_stop=self._num_tokens > self._min_tokens)
            pieces.append(found.text)
            if found.stop is not None:
                return _Addition("".join(pieces), place, FinishReason.STOP, found.stop)
        if token_output.finish_reason is not None:
            found = self._stops.push(self._detokenizer.flush(), may_stop=self._num_tokens > self._min_tokens)
            pieces.append(found.text)
            if found.stop is not None:
                return _Addition("".join(pieces), len(token_output.token_ids), FinishReason.STOP, found.stop)
            pieces.append(self._stops.flush())
        return _Addition("".join(pieces), len(token_output.token_ids), token_output.finish_reason, None)

    def _shown(self, token_output: TokenOutput) -> Sequence[int]:
        """The tokens whose text is shown: all but the one that ended the sequence."""
        ended_by_token = token_output.finish_reason is FinishReason.STOP and token_output.stop_token_id is not None
        if ended_by_token and not self._shows_stop_token:
            return token_output.token_ids[:-1]
        return token_output.token_ids
