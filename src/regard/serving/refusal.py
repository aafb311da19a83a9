"""Why a request is not answered."""

from __future__ import annotations


class Refusal(Exception):
    """A request that is not answered, with the HTTP status and a text for the client.

    retry_after: after how many seconds the client may try again; 0 if trying again does not help.
    """

    def __init__(self, status: int, text: str, *, retry_after: int = 0) -> None:
        super().__init__(text)
        self.status, self.text, self.retry_after = status, text, retry_after
