"""regard demo: trains a small model and shows its attention."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, Set, Threads, make_console, prepare_device

if TYPE_CHECKING:
    from regard.training.validation import Prediction

NUM_SHOWN = 5


def sample(predictions: "list[Prediction]") -> "list[Prediction]":
    """Returns a few words of medium length, always the same ones, chosen independently of how well they are predicted."""
    from hashlib import sha1

    from regard.data.source_text import flat

    candidates = (prediction for prediction in predictions if 8 <= len(flat(prediction.source)) <= 11)
    return sorted(candidates, key=lambda prediction: sha1(flat(prediction.source).encode()).digest())[:NUM_SHOWN]


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write the model and the pictures to.")] = Path("regard-demo"),
    set_: Set = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model to pronounce English in a few minutes, test it on words it has never seen, and draw its attention."""
    from regard.checkpoint import folder
    from regard.checkpoint.lock import locked
    from regard.data.dictionary import pronunciations
    from regard.evaluation import ErrorRates
    from regard.inspection.capture import inspect
    from regard.inspection.render import can_draw, draw, in_terminal
    from regard.inspection.report import write_page
    from regard.training.data import in_memory
    from regard.training.overrides import override
    from regard.training.run import run
    from regard.training.settings import DEMO
    from regard.training.validation import Prediction

    console = make_console()
    context.with_resource(locked(out / "model"))
    folder.recover(out / "model")
    folder.check_destination(out / "model", replace=True)
    settings = override(DEMO, set_ or [])
    torch_device = prepare_device(device, threads)
    console.print("Training a model to pronounce English words, from letters to phonemes (CMU Pronouncing Dictionary).")
    training_data = in_memory("cmudict-test", pronunciations("train"), pronunciations("test"), settings.data)
    trained = run(training_data, settings, console, torch_device)
    folder.save(trained.saved, out / "model", replace=True)
    rates = trained.rates
    assert isinstance(rates, ErrorRates)

    console.print(
        f"\nOn {rates.num_sentences:,} words never seen: phoneme error rate {rates.symbol:.1%}, "
        f"{rates.sequence:.1%} of the words not exactly right (sequence error rate)\n"
        f"  {trained.signature}\n{trained.assessment.verdict}\n\nFive of them:"
    )
    shown = sample([prediction for prediction in trained.predictions if isinstance(prediction, Prediction)])
    for prediction in shown:
        verdict = "right" if prediction.right else f"the dictionary says {' or '.join(prediction.references)}"
        console.print(f"  {prediction.source:<12} {prediction.result.text}  ({verdict})")
    maps = [prediction.result.attention() for prediction in shown]
    console.print("\nWhere the model looked (rows: phonemes written, columns: letters read):\n")
    console.print(in_terminal(maps[0]))
    if can_draw():
        console.print(f"A picture of the attention for all five: {draw(maps, out / 'attention.png')}")
    else:
        console.print('To draw pictures: pip install "regard[plot]"')
    page = write_page(inspect(trained.translator, shown[0].source, what=("weights", "scores", "norms")), out / "attention.html")
    console.print(f"To explore the first word in a browser, open {page}")
    console.print(f"Next: echo serendipity | regard translate {out / 'model'}")
