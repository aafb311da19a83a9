"""Languages in the model folder: given with --languages, named by columns or by prefix tokens, or unknown."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import regard
from regard.errors import UserError
from regard.languages import NAMES, SHORT, UNKNOWN, Language, Languages
from regard.training.settings import DataSettings
from regard.training.tokenise import how_read

PAIRS = [("abc", "abd"), ("cab", "dab"), ("bacad", "cadab"), ("ddd", "a")] * 3
SMALL = {"steps": 2, "width": 8, "embedding": 4, "quiet": True}


def test_what_a_user_types() -> None:
    assert Languages.parse(()) == Languages()
    assert Languages.parse(("en", "de")) == Languages((Language("en", "English"),), (Language("de", "German"),))
    several = Languages.parse(("xx=Toki Pona", "de + fr"))
    assert several.source == (Language("xx", "Toki Pona"),)
    assert [language.code for language in several.target] == ["de", "fr"]
    with pytest.raises(UserError, match=r"languages names 1 sides, expected two, source and target: en,de"):
        Languages.parse(("en",))
    with pytest.raises(UserError, match="a language is 'e', expected a code, such as de, or a code and a name"):
        Languages.parse(("e", "de"))


def test_the_table_of_languages_has_no_code_twice() -> None:
    assert len(NAMES) == len(SHORT) == 183
    assert all(len(short) == 2 and len(long) == 3 for long, short in SHORT.items())
    assert len(set(NAMES.values())) == len(NAMES)


def test_columns_and_prefix_tokens_name_languages() -> None:
    assert Languages().known(("en", "de")) == Languages.parse(("en", "de"))
    assert Languages().known(("english", "de")) == Languages((UNKNOWN[0],), (UNKNOWN[1],))
    assert Languages().known(("en", "de")).stated == Languages.parse(("en", "de"))
    assert Languages().known(()).stated == Languages()
    several = Languages().known((), ["▁a", ">>deu<<", ">>cmn_Hans<<"])
    assert several.target == (Language("de", "German", ">>deu<<"), Language("cmn_Hans", "cmn_Hans", ">>cmn_Hans<<"))
    given = Languages.parse(("en", "de=Deutsch+fr")).known((), [">>fra<<", ">>deu<<"])
    assert given.target == (Language("de", "Deutsch", ">>deu<<"), Language("fr", "French", ">>fra<<"))
    assert given.prefixed("a cat", "fr") == ">>fra<< a cat"
    assert Languages.parse(("en", "de")).prefixed("a cat", "de") == "a cat"
    with pytest.raises(UserError, match="does not write the language 'es'; expected one of de, fr"):
        given.prefixed("a cat", "es")


def test_a_model_folder_keeps_its_languages(tmp_path: Path) -> None:
    model = regard.train(PAIRS, tmp_path / "model", languages=("xx=Toki Pona", "de"), **SMALL)  # type: ignore[arg-type]
    expected = Languages((Language("xx", "Toki Pona"),), (Language("de", "German"),))
    assert model.languages == regard.load(tmp_path / "model").languages == expected
    assert "writes texts, from Toki Pona (xx) to German (de)." in model.card
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["languages"]["target"] == [{"code": "de", "name": "German", "prefix": ""}]
    named = replace(model, languages=Languages.parse(("tok", "de")))
    named.save(tmp_path / "named")
    assert regard.load(tmp_path / "named").languages.source == (Language("tok", "tok"),)
    config["languages"]["target"] = [{"code": 7}]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: the languages cannot be read: "):
        regard.load(tmp_path / "model")


def test_languages_change_no_token(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    files = (str(tmp_path / "pairs.tsv"),)
    one, other = (how_read(DataSettings(files=files, languages=codes)) for codes in ((), ("en", "de")))
    assert one == other != how_read(DataSettings(files=files, max_length=7))


def test_the_header_of_the_data_names_them_too(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("en,de\n" + "".join(f"{a},{b}\n" for a, b in PAIRS))
    model = regard.train(tmp_path / "pairs.csv", source="en", target="de", **SMALL)  # type: ignore[arg-type]
    assert model.languages == Languages.parse(("en", "de"))
    model.save(tmp_path / "model")
    assert regard.load(tmp_path / "model").languages == Languages.parse(("en", "de"))
    unnamed = regard.build("rnn", PAIRS, width=8)
    unnamed.save(tmp_path / "unnamed")
    assert "languages" not in json.loads((tmp_path / "unnamed" / "config.json").read_text())
    assert regard.load(tmp_path / "unnamed").languages == Languages((UNKNOWN[0],), (UNKNOWN[1],))
