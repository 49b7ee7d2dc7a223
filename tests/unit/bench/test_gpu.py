import pytest
import torch

from aphrodited.bench.gpu import compare, main
from aphrodited.errors import EXIT_CONFIG
from aphrodited.outputs import TokenLogprobs


def token(token_id, logprob, **alternatives):
    tops = {token_id: logprob} | {int(name[1:]): value for name, value in alternatives.items()}
    return TokenLogprobs(token_id, logprob, 1, list(tops), list(tops.values()))


def test_equal_answers_differ_by_their_worst_number():
    ours = [[token(1, -0.5), token(2, -0.75)]]
    assert compare([[token(1, -0.5), token(2, -1.0)]], ours) == (0.25, 0)


def test_answers_may_part_where_two_tokens_are_almost_as_likely():
    reference = [[token(1, -0.5, t9=-0.625), token(2, -0.1)]]
    assert compare(reference, [[token(9, -0.5), token(7, -3.0)]]) == (0.125, 1)


def test_a_token_that_the_reference_would_not_choose_is_wrong():
    assert compare([[token(1, -0.5, t9=-0.625)]], [[token(3, -0.5)]]).worst == float("inf")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main([]) == EXIT_CONFIG
    assert "device is cuda:0, but torch" in capsys.readouterr().err
