"""Unicode normalisation. Unicode can spell é as one character (NFC) or as an e and an accent (NFD); both become NFC here."""

from __future__ import annotations

from tokenizers import normalizers

NFC = normalizers.NFC()
"""The normalizer of the tokenizers library, so that texts and tokenizer.json agree: Python's unicodedata may support another
version of Unicode."""


def nfc(text: str) -> str:
    """Returns the text in NFC. A text with a lone surrogate is returned unchanged; encoding it raises the error."""
    try:
        return text if text.isascii() else str(NFC.normalize_str(text))
    except UnicodeEncodeError:
        return text
