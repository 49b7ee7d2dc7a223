"""The picture is a document with every curve in it."""

from __future__ import annotations

from xml.etree import ElementTree

from aphrodited.bench.timeline_picture import HEIGHT, TOP, draw


def test_every_curve_is_a_path_within_the_picture() -> None:
    text = draw({"one": [0.0, 100.0, 50.0], "two": [10.0, 0.0, 310.0]}, first_s=-1.0, bin_s=0.5, event="a < b")
    root = ElementTree.fromstring(text)
    paths = [element for element in root.iter() if element.tag.endswith("path")]
    assert len(paths) == 2
    highest = float(paths[1].attrib["d"].rpartition("V")[2].partition("H")[0])
    assert TOP <= highest < HEIGHT / 3
    assert {"one", "two", "a < b"} <= {element.text for element in root.iter()}


def test_nothing_but_silence_can_be_drawn() -> None:
    ElementTree.fromstring(draw({"none": [0.0, 0.0]}, first_s=0.0, bin_s=1.0, event="kill"))
