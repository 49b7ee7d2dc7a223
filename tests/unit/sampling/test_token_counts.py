import random
from array import array
from collections import Counter

from aphrodited.sampling.token_counts import TokenCounts


def counted(counts):
    return dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))


def test_the_prompt_is_seen_and_the_output_is_counted():
    assert counted(TokenCounts(array("q", [5, 5, 6]), array("q", [6, 7, 7]))) == {5: 0, 6: 1, 7: 2}


def test_counting_token_by_token_equals_counting_all_at_once():
    output = random.Random(1).choices(range(500), k=3000)
    grown = TokenCounts(array("q", [1000]), array("q"))
    for token_id in output:
        grown.add(token_id)
    assert counted(grown) == {1000: 0} | Counter(output)
    assert counted(grown) == counted(TokenCounts(array("q", [1000]), array("q", output)))


def test_a_token_of_the_prompt_is_counted_once_it_is_generated():
    counts = TokenCounts(array("q", [5]), array("q"))
    counts.add(5)
    assert counted(counts) == {5: 1}
