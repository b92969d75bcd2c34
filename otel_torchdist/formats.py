"""The formats in which processes of different versions meet, a number each, and the line that refuses another number.

A number stands for everything that a reader must know. It is raised with every change that a reader of the same number
would misunderstand or reject. New keys and fields with a default need no new number: they are ignored by older readers,
and newer readers use the default.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.errors import TapeError
from otel_torchdist.package import package_version


class OtherFormatError(TapeError):
    """Another version of this package has written a tape, an archive or a bundle, in another format.

    Attributes:
        refusal: The message without the path; files of one version have the same.
    """

    def __init__(self, where: str, refusal: str) -> None:
        """Create the error for the file at a path."""
        super().__init__(f"{where}: {refusal}")
        self.refusal = refusal


class NumberedFormat:
    """A format. A plain class, because it is loaded in ranks, and takes the least memory there.

    Attributes:
        name: Its name in messages.
        number: The only number that this version writes and reads.
    """

    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number

    def refusal(self, found: int, written_by: str = "") -> str:
        """Return why something of another number is not read, and what to do.

        Args:
            found: Its number.
            written_by: Version of the package that has written it; '' if unknown.
        """
        own = f"this is otel-torchdist {package_version()}, which reads {self.name} {self.number}"
        if written_by:
            return f"{self.name} {found}, of otel-torchdist {written_by}; {own}: read it with version {written_by}"
        if found > self.number:
            return f"{self.name} {found}, of a newer otel-torchdist; {own}: upgrade it, or read it with the newer one"
        return f"{self.name} {found}, of an older otel-torchdist; {own}: read it with the older one"

    def check(self, found: int, where: str, written_by: str = "") -> None:
        """Refuse another number.

        Args:
            found: The number.
            where: Path of the file, for the message.
            written_by: See `refusal`.

        Raises:
            OtherFormatError: It is another number.
        """
        if found != self.number:
            raise OtherFormatError(where, self.refusal(found, written_by))


TAPE: Final = NumberedFormat("tape format", 7)
"""A rank's tape, and all files of the job directory that ranks and agents write for each other."""
ARCHIVE: Final = NumberedFormat("archive format", 1)
BUNDLE: Final = NumberedFormat("bundle format", 1)
EXCHANGE: Final = NumberedFormat("exchange protocol", 1)
"""The messages between agents. They contain segments of archives, so a new archive format needs a new protocol."""
STATE: Final = NumberedFormat("state format", 1)
"""The state that an agent keeps for the next agent of a job directory."""
