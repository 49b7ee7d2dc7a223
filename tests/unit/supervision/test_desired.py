import pytest

from aphrodited.paths import ModelPaths
from aphrodited.supervision.desired import Desired, read_desired, write_desired


def test_a_model_is_wanted_until_somebody_says_otherwise(tmp_path):
    paths = ModelPaths(tmp_path / "m")
    assert read_desired(paths) is Desired.SERVED
    for desired in (Desired.STOPPED, Desired.SERVED, Desired.STOPPED):
        write_desired(paths, desired)
        assert read_desired(paths) is desired
    assert [path.name for path in paths.folder.iterdir()] == ["desired"]


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_a_damaged_file_stops_nothing(tmp_path, text):
    paths = ModelPaths(tmp_path)
    paths.desired.write_text(text)
    assert read_desired(paths) is Desired.SERVED
