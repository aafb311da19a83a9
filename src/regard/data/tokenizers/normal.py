"""Unicode has several spellings of one text: é is one character (NFC), or an e and an accent (NFD). Here they become one."""

from __future__ import annotations

from tokenizers import normalizers

NFC = normalizers.NFC()
"""The library's own, so that texts and tokenizer.json agree: Python's unicodedata knows other versions of Unicode."""


def nfc(text: str) -> str:
    """The composed spelling. Half a character is left alone: whoever encodes the text reports it."""
    try:
        return text if text.isascii() else str(NFC.normalize_str(text))
    except UnicodeEncodeError:
        return text
