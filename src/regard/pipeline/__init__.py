"""From what a user gives to what a user receives: a Reader makes requests, an Engine runs them, answers become results.

The class `Translator` is all that users see. What its methods do is in the other modules: `translating` and `streaming` run
searches, `assembly` makes results of what they found, `scoring` scores given outputs, `encoding` runs the encoder alone,
`attention` and `alignment` run the model over outputs that are written already, through `forced`.
"""

from regard.pipeline.engines import engine_of
from regard.pipeline.translating import Numbered, Outcome, ProgressCallback
from regard.pipeline.translator import Translator, save

__all__ = ["Numbered", "Outcome", "ProgressCallback", "Translator", "engine_of", "save"]
