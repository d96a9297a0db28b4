"""`hpcenv engine`: which container engine there is, and how to get one."""

from __future__ import annotations

import typer

from hpcenv.cli import output, settings

app = typer.Typer(help="The container engine: what there is, and how to get one.")

_AS_JSON = typer.Option(False, "--json", help="Print JSON.")
_CHECK = typer.Option(False, "--check", help="Ask Debian's archive whether there is a newer one.")
_ENGINE = typer.Argument("apptainer", help="Which engine; there is one.")


@app.command("list")
def list_(as_json: bool = _AS_JSON, check: bool = _CHECK) -> None:
    """List the engines, which one is used (*), what each lacks and the line that mends it."""
    from datetime import UTC, datetime

    from hpcenv.base.record import dump_json
    from hpcenv.engines.inventory import inventory, table
    from hpcenv.engines.provision import newest
    from hpcenv.sources.configured import detect_mirrors

    folder = settings.load().engines
    known = newest(folder, detect_mirrors()) if check else None
    found = inventory(folder, known, datetime.now(UTC).date())
    if as_json:
        output.show(dump_json(found))
        return
    if found.engines:
        output.show(table(found.engines))
    if not any(engine.used for engine in found.engines):
        output.say("no engine on this host can be used as it is:  hpcenv engine install")


@app.command()
def install(engine: str = _ENGINE) -> None:
    """Install an engine for this user alone: no root, and nothing of the system changes.

    Prints the line that puts it on PATH: eval "$(hpcenv engine install)"
    """
    import os
    import shlex
    from pathlib import Path

    from hpcenv.base.errors import BadInput
    from hpcenv.engines.provision import install, link_for_path
    from hpcenv.sources.configured import detect_mirrors

    if engine != "apptainer":
        raise BadInput(
            f"hpcenv installs no engine {engine!r}, only 'apptainer'",
            remedy="docker and podman come from the operating system's packages",
        )
    folder = install(settings.load().engines, detect_mirrors(), output.say)
    home = Path.home()
    local = home / ".local/bin"
    if str(local) in os.environ.get("PATH", "").split(":") and folder.is_relative_to(home):
        for link in link_for_path(folder, local):
            output.say(f"{link} leads to it")
    output.show(f"export PATH={shlex.quote(str(folder))}:$PATH")
