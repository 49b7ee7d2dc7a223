"""The bytes of a stream, exactly."""

from aphrodited.api.answers import Head, Usage
from aphrodited.api.chat_answer import ChatAnswer
from aphrodited.api.choices import Delta
from aphrodited.api.completion_answer import CompletionAnswer
from aphrodited.api.generation import Script
from aphrodited.api.logprobs import PromptScores
from aphrodited.outputs import FinishReason, TokenLogprobs
from tests.support.fake_serving import FakeTokenizer

HEAD = Head("id-1", "m", "abc", created=7)
UNASKED = PromptScores([65], FakeTokenizer(), None)


def delta(text, finish=None, logprobs=None, index=0):
    return Delta(index, text, 1, logprobs, finish, None, 0)


def test_a_chat_stream_is_written_as_documented():
    answer = ChatAnswer(HEAD, FakeTokenizer(), False, [UNASKED])
    script = Script(answer, 1)
    head = (
        'data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m",'
        '"system_fingerprint":"fp_abc","choices":[{"index":0,"delta":'
    )
    assert script.events([delta("é\n\"")]).decode() == (
        head + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '{"content":"é\\n\\""},"logprobs":null,"finish_reason":null}]}\n\n'
    )  # fmt: skip
    assert script.events([delta("")]) == b""
    assert script.events([delta("", FinishReason.STOP)]).decode() == (
        head + '{},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'
    )


def test_the_usage_chunk_has_no_choices_and_other_chunks_no_usage():
    answer = CompletionAnswer(HEAD, FakeTokenizer(), include_usage=True, scores=[UNASKED], echoes=["q"])
    head = 'data: {"id":"id-1","object":"text_completion","created":7,"model":"m","system_fingerprint":"fp_abc"'
    assert Script(answer, 1).events([delta("a", FinishReason.LENGTH)]).decode() == (
        head + ',"choices":[{"index":0,"text":"q","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        + head + ',"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        + head + ',"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]'
        ',"usage":null}\n\n'
    )  # fmt: skip
    assert answer.chunks.usage(Usage(3, 2, 1)).decode() == (
        head + ',"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
        '"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
    )


def test_logprobs_of_held_back_text_wait_for_it():
    answer = CompletionAnswer(HEAD, FakeTokenizer(), include_usage=False, echoes=[""], scores=[UNASKED])
    script = Script(answer, 1)
    entry = TokenLogprobs(65, -0.25, 1, [], [])
    assert script.events([delta("", logprobs=[entry])]) == b""
    shown = script.events([delta("AA", logprobs=[entry])]).decode()
    assert '"tokens":["A","A"]' in shown
    last = script.events([delta("", FinishReason.STOP, logprobs=[entry])]).decode()
    assert last.count("data: ") == 2
    assert '"text_offset":[2]' in last
