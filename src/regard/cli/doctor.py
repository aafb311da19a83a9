"""regard doctor: reports what this installation supports and whether it computes correctly."""

import typer


def doctor() -> None:
    """Check this installation: versions, threads, kernels, devices, extras, and whether fused attention is correct."""
    import importlib.util
    import platform
    from importlib.metadata import version

    import torch

    import regard
    from regard.core.devices import available_devices
    from regard.errors import plural
    from regard.native.library import report

    def line(name: str, value: object) -> None:
        typer.echo(f"{name:<12} {value}")

    def extra(name: str, module: str) -> str:
        installed = importlib.util.find_spec(module) is not None
        return f"{name}: yes" if installed else f'{name}: no (pip install "regard[{name}]")'

    line("regard", regard.__version__)
    line("python", f"{platform.python_version()} on {platform.platform()}")
    line(
        "torch", f"{torch.__version__}, {plural(torch.get_num_threads(), 'thread')}, {torch.backends.cpu.get_cpu_capability()}"
    )
    for name in ("numpy", "tokenizers", "safetensors", "rapidfuzz", "pydantic", "ruamel.yaml"):
        line(name, version(name))
    line("native", report())
    line("devices", ", ".join(name for name, available in available_devices().items() if available))
    extras = {
        "plot": "matplotlib",
        "audio": "soundfile",
        "xlsx": "openpyxl",
        "metrics": "sacrebleu",
        "tensorboard": "tensorboard",
    }
    line("extras", "; ".join(extra(name, package) for name, package in extras.items()))

    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 31, 16, generator=generator) for _ in range(3))
    allow = regard.masks.causal(31)
    fused = regard.attend(query, key, value, allow=allow)
    plain = regard.attention_weights(query, key, allow=allow) @ value
    difference = (fused - plain).abs().max().item()
    line("attention", f"fused and plain differ by at most {difference:.1e}")
    if not difference < 1e-5:
        typer.echo(
            "regard: the fused kernel computes wrong results on this machine; please report this with the lines above", err=True
        )
        raise typer.Exit(1)
