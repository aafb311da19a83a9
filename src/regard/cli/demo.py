"""regard demo: from nothing to a trained model that shows its attention."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, Set, Threads, make_console, prepare

if TYPE_CHECKING:
    from regard.training.answers import Answered

NUM_SHOWN = 5


def sample(answers: "list[Answered]") -> "list[Answered]":
    """The same few words every time, chosen before anybody saw how well they are pronounced."""
    from hashlib import sha1

    longish = (answered for answered in answers if 8 <= len(answered.source) <= 11)
    return sorted(longish, key=lambda answered: sha1(answered.source.encode()).digest())[:NUM_SHOWN]


def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Where to put the model and the picture.")] = Path("regard-demo"),
    set_: Set = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Learn to pronounce English in two minutes, then pronounce words never seen and draw the attention."""
    from regard.checkpoint import folder
    from regard.checkpoint.lock import locked
    from regard.data.dictionary import pronunciations
    from regard.inspection.render import can_draw, draw, in_terminal
    from regard.inspection.report import write_page
    from regard.inspection.seeing import see
    from regard.training.material import in_memory
    from regard.training.run import run
    from regard.training.settings import DEMO, override

    console = make_console()
    context.with_resource(locked(out / "model"))
    folder.recover(out / "model")
    folder.check_place(out / "model", replace=True)
    settings = override(DEMO, set_ or [])
    chosen = prepare(device, threads)
    console.print("Learning to pronounce English words from the CMU Pronouncing Dictionary (letters -> phonemes).")
    material = in_memory("cmudict-test", pronunciations("train"), pronunciations("test"), settings.data)
    trained = run(material, settings, console, chosen)
    folder.save(trained.saved, out / "model", replace=True)

    console.print(
        f"\nOn {trained.rates.num_sentences:,} words never seen: phoneme error rate {trained.rates.symbol:.1%}, "
        f"word error rate {trained.rates.word:.1%}\n  {trained.signature}\n{trained.assessment.verdict}\n\nFive of them:"
    )
    shown = sample(trained.answers)
    for answered in shown:
        verdict = "right" if answered.right else f"the dictionary says {' or '.join(answered.references)}"
        console.print(f"  {answered.source:<12} {answered.result.text}  ({verdict})")
    maps = [answered.result.attention() for answered in shown]
    console.print("\nWhere the model looked (rows: phonemes written, columns: letters read):\n")
    console.print(in_terminal(maps[0]))
    if can_draw():
        console.print(f"The same for all five as a picture: {draw(maps, out / 'attention.png')}")
    else:
        console.print('For pictures: pip install "regard[plot]"')
    page = write_page(see(trained.translator, shown[0].source, what=("weights", "scores", "norms")), out / "attention.html")
    console.print(f"To explore the first in a browser: {page}")
    console.print(f"Next: echo serendipity | regard translate {out / 'model'}")
