"""The schemas of verdicts: the package has those of the pages, and no key is ever taken away."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError

from reference.schemas import keys, recorded_keys, schemas
from tests.deploy.actions.verdict import verdict
from tests.support.repository import REPOSITORY
from tests.support.schemas import ACTION, SCHEMAS, valid, validator


def test_keys_are_only_added() -> None:
    """Every key that was ever recorded is still there, with the same type; a change needs a schema of a new number."""
    current = keys()
    assert {key: current.get(key) for key in recorded_keys()} == recorded_keys()


@pytest.mark.parametrize("name", schemas())
def test_schemas(name: str) -> None:
    """Each is a schema of the 2020-12 dialect, and the package has what the pages show."""
    Draft202012Validator.check_schema(schemas()[name])
    shown = (REPOSITORY / "docs" / "schemas" / f"{name}.json").read_text()
    assert (SCHEMAS / f"{name}.json").read_text() == shown


@pytest.mark.parametrize("broken", [{"schema": 2}, {"machine": {}}, {"ranks": [1]}, {"attributes": {"a": {}}}])
def test_other_documents(broken: dict[str, object]) -> None:
    """A document of another schema, and one with keys missing or of another type, do not fit."""
    document = json.loads(verdict("n1"))
    assert valid(document, ACTION) == document
    with pytest.raises(ValidationError):
        validator(ACTION).validate({**document, **broken})
    for key in document:
        with pytest.raises(ValidationError):
            validator(ACTION).validate({name: value for name, value in document.items() if name != key})
