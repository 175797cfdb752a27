"""Fixtures for the command line's tests."""

import pytest


@pytest.fixture
def conf(tmp_path):
    """Writes a file and gives its path."""

    def write(text, name="conf.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return str(file)

    return write
