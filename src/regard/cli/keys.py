"""regard keys add NAME"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Manage the API keys of a server.")

File = Annotated[Path, typer.Option(help="File of keys, as for regard serve --keys.")]
Name = Annotated[str, typer.Argument(help="Name of the key's owner.")]
DEFAULT = Path("keys.db")


@app.command()
def add(
    name: Name,
    file: File = DEFAULT,
    per_minute: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Requests per minute of this key; 0: no limit. Default: as the server limits everybody.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a key and print it. The file holds only its hash, so keep it."""
    from regard.serving import keys

    print(keys.add(file, name, per_minute))


@app.command("list")
def show(file: File = DEFAULT) -> None:
    """List the names of all keys."""
    from regard.serving import keys

    for key in keys.KeyFile(file).list():
        limit = "" if key.per_minute is None else f"  {key.per_minute} per minute" if key.per_minute else "  no limit"
        print(f"{key.name}  since {key.created}{limit}")


@app.command()
def remove(name: Name, file: File = DEFAULT) -> None:
    """Remove a key. The server refuses it from now on."""
    from regard.serving import keys

    keys.remove(file, name)
