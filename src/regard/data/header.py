"""Decides whether the first row of a table is a header.

People recognise a header by its words (word, lemma, falsch, richtig), and by how it differs from the rows below: letters above
numbers, one word above sentences, letters that the column does not use. This module adds up both kinds of evidence. The
threshold is high, because training on one header row does less harm than losing a row of data unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from unicodedata import name

from rapidfuzz.distance import Levenshtein

SOURCES = set("source src input image picture img photo video audio sound wav path file filename clip recording".split())
TARGETS = set("target tgt trg output caption transcript".split())
NUMBERS = set("id idx index no. nr number".split())
"""Columns that are neither source nor target unless chosen."""
_LANGUAGES = set(
    "ar bg bn ca cs da de el en es et eu fa fi fr ga gl he hi hr hu id is it ja ka ko la lt lv nl no pl pt ro ru sk sl sr "
    "sv sw ta th tr uk ur vi zh ara deu eng fra fre ger ita jpn lat por rus spa zho arabic chinese dutch english french german "
    "italian japanese latin portuguese russian spanish".split()
)
_CONTENTS = set(
    "answer correction features form grapheme graphemes ipa lemma letters misspelling phoneme phonemes pronunciation question "
    "reference sentence sentence1 sentence2 spelling tags text translation word words".split()
)
_USUAL = SOURCES | TARGETS | NUMBERS | _LANGUAGES | _CONTENTS
_FURTHER = (
    "answers context correct corrected error example expression feature forms hypothesis incorrect inflected inflection "
    "label language meaning mistake misspelled noisy original paraphrase phrase plural premise prompt query response "
    "right sentences singular summary tag title token tokens transcription translated transliteration typo utterance "
    "variant wrong",
    "antwort aussprache ausgabe beispiel deutsch eingabe einzahl englisch falsch fehler frage französisch grundform "
    "italienisch korrekt korrektur latein lateinisch lautschrift lösung mehrzahl merkmale nummer original plural quelle "
    "quelltext richtig russisch satz schreibung schreibweise singular spanisch umschrift wort wörter ziel zieltext "
    "übersetzung",
    "allemand anglais cible correct correction corrigé entrée erreur espagnol faute faux forme français incorrect italien "
    "lemme mot mots numéro original orthographe phrase prononciation question réponse russe sortie source texte "
    "traduction vrai",
    "alemán corrección correcto entrada error español forma francés frase fuente incorrecto inglés italiano latín lema "
    "número oración original palabra palabras pregunta pronunciación respuesta ruso salida texto traducción",
    "alemão correção correta correto entrada errado erro espanhol fonte forma francês frase incorreto inglês italiano "
    "lema latim número original palavra palavras pergunta português pronúncia resposta russo saída texto tradução",
    "corretto domanda errato errore fonte forma francese frase giusto inglese italiano latino numero originale parola "
    "parole pronuncia risposta russo sbagliato spagnolo tedesco testo traduzione",
    "antwoord bron correct doel duits engels fout frans goed invoer juist nederlands nummer onjuist tekst uitspraak "
    "uitvoer vertaling vraag woord woorden zin",
    "angielski błąd błędne błędny forma francuski hasło niemiecki niepoprawne niepoprawny numer odpowiedź oryginał polski "
    "poprawne poprawny pytanie rosyjski słowo tekst tłumaczenie wejście wymowa wyjście zdanie źródło",
    "английский верно верный вопрос вход выход исправление исправленное испанский источник итальянский латынь лемма "
    "написание неверно неверный немецкий неправильно неправильное номер ответ оригинал ошибка ошибки перевод правильно "
    "правильное правильный предложение признаки произношение русский слова слово словоформа текст транскрипция форма "
    "французский цель",
    "англійська відповідь запитання неправильно переклад помилка правильно речення слово текст українська",
    "الإنجليزية الترجمة العربية الكلمة النص ترجمة جملة جواب خطأ سؤال صحيح كلمة نص",
    "中文 俄语 单词 句子 原文 德语 拼音 日语 正确 汉字 法语 目标 答案 翻译 英文 英语 译文 输入 输出 错误 问题",
    "かな ローマ字 中国語 入力 出力 単語 原文 回答 日本語 正しい 正解 漢字 発音 英語 訳文 読み 誤り 質問 翻訳",
)
_ANYWHERE = SOURCES | TARGETS | NUMBERS | _LANGUAGES | {"ipa", "lemma", "text"}
_WORDS = [_USUAL.union(_FURTHER[0].split()), *(_ANYWHERE.union(words.split()) for words in _FURTHER[1:])]
"""Words that name columns, by language. A row in two languages, such as word, Wort, is more likely a dictionary entry."""

_MIN_ROWS = 10
"""Minimum number of rows below the first for a difference to count as evidence: in a small sample the first row may differ by
chance."""
_MAX_CHARS, _MAX_WORDS = 50, 5
"""Maximum number of characters and words in a column name."""
_COMPARED_CHARS = 200
"""Number of characters of a cell that are compared."""
_STRONG, _WEAK = 2, 1
_NEEDED, _NEEDED_IF_USUAL = 2 * _STRONG, _STRONG
"""Strong evidence from two columns; from one column in formats that usually have a header."""


def are_usual_names(cells: Sequence[str]) -> bool:
    """Whether all cells are distinct and are English words or codes that name columns."""
    names = {cell.strip().lower() for cell in cells}
    return len(names) == len(cells) and all(re.split("[-_]", label)[0] in _USUAL for label in names)


def evidence(first: Sequence[str], below: Sequence[Sequence[str]], *, usual: bool) -> float:
    """Returns the evidence that the first row is a header, relative to the threshold: 1 or more means it is a header.

    below: the rows below, each with as many cells. usual: whether files of this format usually have a header, as .csv files do
    and .tsv files do not.
    """
    cells = [cell.strip() for cell in first]
    if are_usual_names(cells) or _are_known_words(cells) or _are_consecutive(cells, below):
        return 1.0
    columns = [[row[at].strip()[:_COMPARED_CHARS] for row in below] for at in range(len(cells))]
    if not all(map(_may_be_name, cells, columns)) or len(set(cells)) < len(cells):
        return 0.0
    known = max(sum(_is_word(cell.lower(), words) for cell in cells) for words in _WORDS)
    strength = known * _WEAK + sum(_column_evidence(*column) for column in zip(cells, columns, strict=True))
    if len(cells) == 2:
        strength += _pair_evidence(cells, columns)
    return strength / (_NEEDED_IF_USUAL if usual else _NEEDED)


def _are_known_words(cells: Sequence[str]) -> bool:
    names = {cell.lower() for cell in cells}
    return len(names) == len(cells) and any(all(_is_word(label, words) for label in names) for words in _WORDS)


def _is_word(text: str, words: set[str]) -> bool:
    """Whether all parts of the text are known words, as in word, input_text, English sentence, text 2."""
    parts = [part for part in re.split(r"[-_\s.:#()/\d]", text) if part]
    return bool(parts) and all(part in words for part in parts)


def _are_consecutive(cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether the cells are 0, 1, … or 1, 2, …, as programs write for unnamed columns, above rows without numbers."""
    numbers = [[str(number) for number in range(start, start + len(cells))] for start in (0, 1)]
    return list(cells) in numbers and bool(below) and not any(any(map(_is_number, row)) for row in below)


def _is_number(text: str) -> bool:
    try:
        float(text[:_COMPARED_CHARS].strip().replace(",", "."))
    except ValueError:
        return False
    return True


def _may_be_name(cell: str, column: Sequence[str]) -> bool:
    """Whether the cell is neither a number, nor a sentence, nor a value that occurs again in the column."""
    if not cell:
        return True  # an index column without a name
    if len(cell) > _MAX_CHARS or len(cell.split()) > _MAX_WORDS or cell[-1] in ".!?…。！？;," or _is_number(cell):
        return False
    return cell not in column


def _column_evidence(cell: str, column: Sequence[str]) -> int:
    """Returns the evidence that the cell is the name of the column below it."""
    column = [other for other in column if other]
    if len(column) < _MIN_ROWS:
        return 0
    if all(map(_is_number, column)):
        return _STRONG
    if not cell:
        return 0
    short = 3 * len(cell.split()) <= min(len(other.split()) for other in column)
    identifier = " " not in cell and "_" in cell.strip("_") and not any("_" in other for other in column)
    if short or identifier or _uses_other_letters(cell, column):
        return _STRONG
    capital = cell[0].isalpha() and {other[0].isupper() for other in column} == {not cell[0].isupper()}
    return _WEAK if capital else 0


def _uses_other_letters(cell: str, column: Sequence[str]) -> bool:
    """Whether most letters of the cell have an alphabet or a case that the column does not use."""
    used = {_alphabet(char) for char in set().union(*column)}
    letters = {char for char in cell if char.isalpha()}
    return 2 * sum(_alphabet(char) not in used for char in letters) > max(2, len(letters))


def _alphabet(char: str) -> tuple[str, bool]:
    return name(char, "").partition(" ")[0], char.isupper()


def _pair_evidence(cells: Sequence[str], columns: Sequence[Sequence[str]]) -> int:
    """Returns the evidence from both columns together: source and target are similar in every row below, as misspellings and
    corrections are, but not in the first row."""
    if len(columns[0]) < _MIN_ROWS:
        return 0
    similar = [Levenshtein.normalized_similarity(*pair) for pair in zip(*columns, strict=True)]
    first_row = Levenshtein.normalized_similarity(*cells)
    return _STRONG if median(similar) >= 0.6 and first_row < 0.4 and first_row < min(similar) else 0
