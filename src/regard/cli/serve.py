"""regard serve model"""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Beam, Device, LengthPenalty, MaxLength, MaxRatio, Score, Threads, check_search, open_model
from regard.errors import UserError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PER_MINUTE = 300
"""Requests per minute of an address, if the server can be reached from outside."""


def serve(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help="Model folders.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than 127.0.0.1 or ::1 can be reached from outside.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 5000,
    languages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM,TO",
            help="Languages of a model, such as en,de. Once for each model, in their order. Default: what the folder says.",
            show_default=False,
        ),
    ] = None,
    pivot: Annotated[
        str, typer.Option(metavar="CODE", help="Translate pairs without a model through this language.", show_default=False)
    ] = "",
    beam: Beam = 1,
    length_penalty: LengthPenalty = "0.6",
    max_length: MaxLength = 256,
    max_ratio: MaxRatio = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="Host name to answer for, apart from localhost and IP addresses; * is any. Can be repeated."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Website whose pages may use the server, such as https://example.org; * is any. Can be repeated.",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of API keys, from regard keys.", show_default=False)
    ] = None,
    require_key: Annotated[bool, typer.Option("--require-key", help="Refuse requests without a key.")] = False,
    per_minute: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Requests per minute of an address or key; 0: no limit. Default: {PER_MINUTE}; no limit on 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    trust_forwarded_for: Annotated[
        bool,
        typer.Option("--trust-forwarded-for", help="Take the client's address from X-Forwarded-For, which your proxy writes."),
    ] = False,
    text_limit: Annotated[int, typer.Option(min=1, help="Characters of a request.")] = 20_000,
    batch_limit: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 200,
    beam_limit: Annotated[int, typer.Option(min=1, help="Largest beam that a request may ask for.")] = 16,
    memory: Annotated[int, typer.Option(min=1, metavar="MB", help="Memory of all searches together.")] = 1024,
    queue: Annotated[int, typer.Option(min=1, help="Sentences that may wait.")] = 5_000,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long a request may take.")] = 60.0,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Also log what is translated.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    score: Score = None,
) -> None:
    """Serve models over HTTP, with LibreTranslate's API.

    It is reachable from this machine only, unless --host says otherwise.

    SIGHUP loads the models again; SIGTERM lets requests end.
    """
    try:
        from regard.serving.app import Policy
        from regard.serving.fleet import Fleet, parse_languages
        from regard.serving.guard import Access
        from regard.serving.keys import KeyFile
        from regard.serving.limits import MEGABYTE, Limits
        from regard.serving.run import make_app, run, start_log
        from regard.serving.server import address_of, listen
    except ModuleNotFoundError as error:
        raise UserError(f"the server needs {error.name}, which is not installed; run: pip install 'regard[serve]'") from None

    search = check_search({"beam": beam, "length_penalty": length_penalty, "max_length": max_length, "max_ratio": max_ratio})
    if beam > beam_limit:
        raise UserError(f"--beam {beam} is more than --beam-limit {beam_limit}; raise the limit, or lower the beam")
    if require_key and keys is None:
        raise UserError("--require-key needs a file of keys; make one with: regard keys add NAME, and give --keys keys.db")
    limits = Limits(
        text=text_limit,
        body=max(Limits.body, 8 * text_limit),
        batch=batch_limit,
        beam=beam_limit,
        alternatives=min(Limits.alternatives, beam_limit - 1),
        memory=memory * MEGABYTE,
        waiting=queue,
        seconds=timeout,
    )
    if per_minute is None:
        per_minute = 0 if host in LOOPBACK else PER_MINUTE
    access = Access(name or (), cors or (), trust_forwarded_for)
    policy = Policy(access, limits, per_minute, None if keys is None else KeyFile(keys), require_key, log_texts)
    bound = listen(host, port)
    start_log()
    known = parse_languages(languages or [], len(models))
    web = make_app(Fleet(models, known, lambda folder: open_model(folder, score, device, threads), pivot), policy, search)
    print(f"Serving on {address_of(bound)} (Ctrl+C ends it)", flush=True)
    run(web, bound)
