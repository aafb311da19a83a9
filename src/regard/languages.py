"""Languages of a model: their codes and names, and how a source says which language to write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.errors import UserError, shown

_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{2,8})*")
PREFIX_TOKEN = re.compile(r">>([^<>\s]+)<<")
"""A token at the start of a source that says which language to write, such as >>deu<<."""


@dataclass(frozen=True)
class Language:
    """A language that a model reads or writes.

    code: "de", as in ISO 639 or BCP 47.  name: "German".
    prefix: what a source starts with if the model writes several languages and is to write this one, such as ">>deu<<".
    """

    code: str
    name: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> Language:
        """Returns the language of a code, "de", or of a code with a name, "de=German". Raises UserError."""
        code, _, name = (part.strip() for part in text.partition("="))
        if not _CODE.fullmatch(code):
            raise UserError(
                f"a language is {shown(text)}, expected a code, such as de, or a code and a name, such as de=German"
            )
        return cls(code, name or NAMES.get(code, code))


UNKNOWN = Language("src", "source"), Language("tgt", "target")
"""What stands for the languages of a model if nobody said which they are."""


@dataclass(frozen=True)
class Languages:
    """The languages that a model reads (`source`) and writes (`target`).

    >>> regard.load("model").languages.target[0].code  # nobody said which language it is
    'tgt'
    """

    source: tuple[Language, ...] = ()
    target: tuple[Language, ...] = ()

    @classmethod
    def parse(cls, sides: Sequence[str]) -> Languages:
        """Returns the languages in ("en", "de"), in ("en=English", "de=German") or, if a side has several, in ("en", "de+fr").
        Raises UserError."""
        if not sides:
            return cls()
        if len(sides) != 2:
            raise UserError(
                f"languages names {len(sides)} sides, expected two, source and target: en,de; several of one side are joined "
                "by +, as in en,de+fr"
            )
        source, target = (tuple(map(Language.parse, side.split("+"))) for side in sides)
        return cls(source, target)

    def known(self, columns: Sequence[str], prefix_tokens: Iterable[str] = ()) -> Languages:
        """Returns the languages with what else is known of the model filled in: those that the columns of its training data are
        named after, the prefix tokens of its vocabulary, and, if nothing is known, src and tgt.

        columns: the names of the source column and of the target column; or none.
        """
        named = columns if len(columns) == 2 and all(name in NAMES for name in columns) else ("", "")
        tokens = {match[1]: match[0] for token in prefix_tokens if (match := PREFIX_TOKEN.fullmatch(token))}
        source = self.source or _of_codes(named[:1]) or (UNKNOWN[0],)
        target = self.target or _of_codes(tokens) or _of_codes(named[1:]) or (UNKNOWN[1],)
        with_prefix = (Language(one.code, one.name, one.prefix or _prefix(one.code, tokens)) for one in target)
        return Languages(source, tuple(with_prefix))

    @property
    def stated(self) -> Languages:
        """The languages without those that are unknown, src and tgt."""
        return Languages(*(tuple(one for one in side if one not in UNKNOWN) for side in (self.source, self.target)))

    def prefixed(self, text: str, target: str) -> str:
        """Returns a source text as a model of several languages reads it: after the prefix of the language that it is to write.

        target: the code of the language. Raises UserError if the model does not write it.
        """
        for language in self.target:
            if language.code == target:
                return f"{language.prefix} {text}" if language.prefix else text
        codes = ", ".join(language.code for language in self.target)
        raise UserError(f"this model does not write the language {shown(target)}; expected one of {codes}")


def _of_codes(codes: Iterable[str]) -> tuple[Language, ...]:
    """Returns the languages of these codes, two-letter ones where there are such; "" is left out."""
    return tuple(Language(SHORT.get(code, code), NAMES.get(SHORT.get(code, code), code)) for code in codes if code)


def _prefix(code: str, tokens: dict[str, str]) -> str:
    """Returns the prefix token of a language, which may have its three-letter code; "" if there is none."""
    return tokens.get(code) or next((token for long, token in tokens.items() if SHORT.get(long) == code), "")


_TABLE = """
aa aar Afar|ab abk Abkhazian|ae ave Avestan|af afr Afrikaans|ak aka Akan|am amh Amharic|an arg Aragonese|ar ara Arabic
as asm Assamese|av ava Avaric|ay aym Aymara|az aze Azerbaijani|ba bak Bashkir|be bel Belarusian|bg bul Bulgarian
bi bis Bislama|bm bam Bambara|bn ben Bengali|bo bod Tibetan|br bre Breton|bs bos Bosnian|ca cat Catalan|ce che Chechen
ch cha Chamorro|co cos Corsican|cr cre Cree|cs ces Czech|cu chu Church Slavic|cv chv Chuvash|cy cym Welsh|da dan Danish
de deu German|dv div Divehi|dz dzo Dzongkha|ee ewe Ewe|el ell Greek|en eng English|eo epo Esperanto|es spa Spanish
et est Estonian|eu eus Basque|fa fas Persian|ff ful Fulah|fi fin Finnish|fj fij Fijian|fo fao Faroese|fr fra French
fy fry Western Frisian|ga gle Irish|gd gla Scottish Gaelic|gl glg Galician|gn grn Guarani|gu guj Gujarati|gv glv Manx
ha hau Hausa|he heb Hebrew|hi hin Hindi|ho hmo Hiri Motu|hr hrv Croatian|ht hat Haitian Creole|hu hun Hungarian
hy hye Armenian|hz her Herero|ia ina Interlingua|id ind Indonesian|ie ile Interlingue|ig ibo Igbo|ii iii Sichuan Yi
ik ipk Inupiaq|io ido Ido|is isl Icelandic|it ita Italian|iu iku Inuktitut|ja jpn Japanese|jv jav Javanese|ka kat Georgian
kg kon Kongo|ki kik Kikuyu|kj kua Kuanyama|kk kaz Kazakh|kl kal Kalaallisut|km khm Khmer|kn kan Kannada|ko kor Korean
kr kau Kanuri|ks kas Kashmiri|ku kur Kurdish|kv kom Komi|kw cor Cornish|ky kir Kyrgyz|la lat Latin|lb ltz Luxembourgish
lg lug Ganda|li lim Limburgish|ln lin Lingala|lo lao Lao|lt lit Lithuanian|lu lub Luba-Katanga|lv lav Latvian|mg mlg Malagasy
mh mah Marshallese|mi mri Maori|mk mkd Macedonian|ml mal Malayalam|mn mon Mongolian|mr mar Marathi|ms msa Malay|mt mlt Maltese
my mya Burmese|na nau Nauru|nb nob Norwegian Bokmål|nd nde North Ndebele|ne nep Nepali|ng ndo Ndonga|nl nld Dutch
nn nno Norwegian Nynorsk|no nor Norwegian|nr nbl South Ndebele|nv nav Navajo|ny nya Chichewa|oc oci Occitan|oj oji Ojibwa
om orm Oromo|or ori Odia|os oss Ossetian|pa pan Punjabi|pi pli Pali|pl pol Polish|ps pus Pashto|pt por Portuguese
qu que Quechua|rm roh Romansh|rn run Rundi|ro ron Romanian|ru rus Russian|rw kin Kinyarwanda|sa san Sanskrit|sc srd Sardinian
sd snd Sindhi|se sme Northern Sami|sg sag Sango|si sin Sinhala|sk slk Slovak|sl slv Slovenian|sm smo Samoan|sn sna Shona
so som Somali|sq sqi Albanian|sr srp Serbian|ss ssw Swati|st sot Southern Sotho|su sun Sundanese|sv swe Swedish|sw swa Swahili
ta tam Tamil|te tel Telugu|tg tgk Tajik|th tha Thai|ti tir Tigrinya|tk tuk Turkmen|tl tgl Tagalog|tn tsn Tswana|to ton Tongan
tr tur Turkish|ts tso Tsonga|tt tat Tatar|tw twi Twi|ty tah Tahitian|ug uig Uyghur|uk ukr Ukrainian|ur urd Urdu|uz uzb Uzbek
ve ven Venda|vi vie Vietnamese|vo vol Volapük|wa wln Walloon|wo wol Wolof|xh xho Xhosa|yi yid Yiddish|yo yor Yoruba
za zha Zhuang|zh zho Chinese|zu zul Zulu
"""
_ROWS = [row.split(" ", 2) for line in _TABLE.split("\n") for row in line.split("|") if row]
NAMES = {code: name for code, _, name in _ROWS}
"""The English names of the languages with a two-letter code (ISO 639-1), by code."""
SHORT = {long: code for code, long, _ in _ROWS}
"""The two-letter code of each three-letter code (ISO 639-3)."""
