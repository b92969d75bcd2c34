"""Metadata hook that makes README the package's description, with links that work on a package index.

README links to files beside it, which an index does not have. A release names its repository, and the links lead to the
tag of its version there. Otherwise README stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Variable with the address of the repository, such as `https://github.com/OWNER/NAME`.
REPOSITORY = "OTEL_TORCHDIST_REPOSITORY"
# An image or a link of Markdown to a file beside the page.
_RELATIVE = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?![a-z]+:|#)(?P<path>[^)\s]+)\)")


class DescriptionHook(MetadataHookInterface):
    """A metadata hook that sets the description and, if the repository is known, its address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields `readme` and `urls`."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get(REPOSITORY, "").rstrip("/")
        if repository:
            readme = with_absolute_links(readme, repository, f"v{metadata['version']}")
            changelog = f"{repository}/blob/v{metadata['version']}/CHANGELOG.md"
            metadata["urls"] = {"Repository": repository, "Issues": f"{repository}/issues", "Changelog": changelog}
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_absolute_links(page: str, repository: str, tag: str) -> str:
    """Return a page in Markdown whose links to other files lead to a tag of a repository.

    Args:
        page: The page.
        repository: Address of the repository, without a slash at its end.
        tag: The tag.
    """

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}{found['text']}({repository}/{kind}/{tag}/{found['path']})"

    return _RELATIVE.sub(absolute, page)
