"""Every change of logits, against a reference that walks over tokens one at a time."""

import random
from array import array

import pytest
import torch

from aphrodited.sampling.bitmask import mask_of
from aphrodited.sampling.logit_changes import change_logits
from aphrodited.sampling.logit_rules import logit_rules
from aphrodited.sampling.sampled import SamplingRow
from aphrodited.sampling_params import SamplingParams

VOCAB_SIZE = 100
NEVER = -torch.inf


def row(params, prompt=(), output=(), *, grown=(), forbidden=(), by_grammar=None):
    """A row whose output was `output` at first and then grew token by token."""
    rules = logit_rules(params, array("q", prompt), array("q", output), VOCAB_SIZE)
    tokens = array("q", [*prompt, *output])
    for token_id in grown:
        tokens.append(token_id)
        if rules is not None:
            rules.add(token_id)
    allowed = by_grammar
    forbidden = frozenset(forbidden)
    if rules is not None:
        allowed = rules.allowed if by_grammar is None else by_grammar
        forbidden |= rules.forbidden(tokens, len(output) + len(grown))
    return SamplingRow(params, 0, len(tokens), forbidden, rules, allowed)


def expected(logits, params, prompt, output):
    """Straight from the definitions, in float32 as the engine computes."""
    changed = logits.clone()
    for token_id in {*prompt, *output}:
        value = changed[token_id]
        changed[token_id] = (
            value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        )
    for token_id in set(output):
        changed[token_id] -= torch.tensor(params.frequency_penalty) * output.count(token_id)
        changed[token_id] -= params.presence_penalty
    for token_id, bias in (params.logit_bias or {}).items():
        changed[token_id] += bias
    words = params.bad_words_token_ids
    for token_id in range(len(changed)):
        outside = params.allowed_token_ids is not None and token_id not in params.allowed_token_ids
        completes = any(
            word[-1] == token_id and output[len(output) - len(word) + 1 :] == list(word[:-1]) for word in words
        )
        if outside or completes:
            changed[token_id] = NEVER
    return changed


def changed(logits, *rows):
    logits = logits.clone()
    change_logits(logits, rows)
    return logits


def random_logits(num_rows=1, seed=0):
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 4


PROMPT = [3, 4, 5, 5, 50]
OUTPUT = [7, 7, 7, 5, 9]

CASES = [
    {},
    {"presence_penalty": 0.7},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 0.3},
    {"frequency_penalty": -1.1},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 0.2, "frequency_penalty": 0.9, "repetition_penalty": 2.5},
    {"logit_bias": {7: 5.5, 0: -100.0}},
    {"logit_bias": {7: 5.5, 8: 0.0}, "repetition_penalty": 1.2, "presence_penalty": 1.0},
    {"allowed_token_ids": (1, 7, 99)},
    {"bad_words_token_ids": ((7,), (50, 3), (5, 9, 11), (9, 12), (8, 13))},
    {"bad_words_token_ids": ((9, 12),), "allowed_token_ids": (12, 13), "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("num_given", [0, 2, 5])
def test_logits_are_what_the_definitions_say_whether_the_output_was_given_or_grew(options, num_given):
    params = SamplingParams(**options)
    logits = random_logits()
    it = row(params, PROMPT, OUTPUT[:num_given], grown=OUTPUT[num_given:])
    assert torch.equal(changed(logits, it)[0], expected(logits[0], params, PROMPT, OUTPUT))


def test_a_mixed_batch_changes_each_row_as_it_is_changed_alone():
    chooser = random.Random(5)
    logits = random_logits(40)
    rows, references = [], []
    for i in range(40):
        params = SamplingParams(**chooser.choice(CASES))
        prompt = chooser.choices(range(VOCAB_SIZE), k=chooser.randrange(1, 30))
        output = chooser.choices(range(12), k=chooser.randrange(30))
        rows.append(row(params, prompt, [], grown=output))
        references.append(expected(logits[i], params, prompt, output))
    together = changed(logits, *rows)
    assert torch.equal(together, torch.stack(references))
    assert torch.equal(together, torch.cat([changed(logits[i : i + 1], rows[i]) for i in range(40)]))


def test_rows_without_rules_are_left_as_they_are():
    logits = random_logits(3)
    rows = [row(SamplingParams()), row(SamplingParams(presence_penalty=1.0), [], [4]), row(SamplingParams())]
    assert rows[0].rules is None
    after = changed(logits, *rows)
    assert torch.equal(after[[0, 2]], logits[[0, 2]])
    assert not torch.equal(after[1], logits[1])


def test_a_grammar_leaves_what_it_allows_and_forbidden_tokens_go_from_that():
    mask = mask_of([1, 2, 3], VOCAB_SIZE)
    after = changed(random_logits(), row(SamplingParams(), forbidden=[2], by_grammar=mask))
    assert (after[0] > NEVER).nonzero()[:, 0].tolist() == [1, 3]


def test_logits_beyond_a_mask_are_not_allowed():
    after = changed(torch.zeros(1, VOCAB_SIZE + 28), row(SamplingParams(), by_grammar=mask_of([1], VOCAB_SIZE)))
    assert (after[0] > NEVER).nonzero()[:, 0].tolist() == [1]


def test_tokens_of_the_prompt_alone_have_no_presence():
    logits = random_logits()
    after = changed(logits, row(SamplingParams(presence_penalty=2.0, frequency_penalty=2.0), [1, 2, 3]))
    assert torch.equal(after, logits)
