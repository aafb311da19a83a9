"""python argos.py PACKAGE: installs a package of Argos Translate, and prints its translation of each line of standard input.

Argos splits texts into sentences by a model that it would download, so the lines are taken for sentences.
"""

import json
import sys

import argostranslate.package
import argostranslate.sbd
import argostranslate.translate

argostranslate.package.install_from_path(sys.argv[1])
(package,) = argostranslate.package.get_installed_packages()


class Lines:
    """Takes every text for one sentence."""

    def split_sentences(self, text: str) -> list[str]:
        return [text]


translation = argostranslate.translate.PackageTranslation(None, None, package)
translation.sentencizer = Lines()
for line in sys.stdin:
    (hypothesis,) = translation.hypotheses(line.rstrip("\n"), 1)
    print(json.dumps(hypothesis.value))
