"""Releases beside this one, each built once for all tests here."""

from __future__ import annotations

import pytest

from tests.versions.releases import Release, newest_tag, next_release, tagged_release, this_release

ALL_FORMATS = tuple(this_release().formats)


@pytest.fixture(scope="session")
def this() -> Release:
    """This checkout."""
    return this_release()


@pytest.fixture(scope="session", params=["same formats", "raised formats", "newest tag"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Another release: a next one with the same formats, a next one with all of them raised, and the newest tag."""
    folder = tmp_path_factory.mktemp("release")
    if request.param == "newest tag":
        tag = newest_tag()
        if not tag:
            pytest.skip("nothing has been released yet")
        return tagged_release(tag, folder)
    return next_release(folder, *(ALL_FORMATS if request.param == "raised formats" else ()))
