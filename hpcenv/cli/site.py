"""`hpcenv site`: describe this machine, and show the sites that are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hpcenv.cli import output, settings

if TYPE_CHECKING:
    from hpcenv.site.model import SiteProfile

app = typer.Typer(help="Sites: describe this machine, list and show what is known.")

_OUT = typer.Option(None, "-o", "--output", help="Write the profile to this file.")
_NAME = typer.Option(None, "--name", help="What to call the site; this host's name when left out.")
_AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command()
def detect(out: Path | None = _OUT, name: str | None = _NAME, as_json: bool = _AS_JSON) -> None:
    """Describe this machine: MPIs, Slurm, GPUs, fabrics, engines, mirrors.

    Prints the profile, or with -o writes it there and prints what it says in short. Facts that a
    person declared in that file stay as they are.
    """
    import platform

    from hpcenv.base.publish import publish
    from hpcenv.base.record import dump_json
    from hpcenv.site.detect import detect as detect_site
    from hpcenv.site.merge import keep_declared
    from hpcenv.site.profile import dump_site, load_site
    from hpcenv.site.summary import summary

    # Read first: what is wrong with it should not cost a detection.
    written = load_site(str(out.absolute())) if out is not None and out.exists() else None
    called = name or (written.name if written else platform.node().split(".")[0]) or "here"
    profile = detect_site(called, engines=[settings.load().engines / "bin"])
    if written is not None:
        profile = keep_declared(profile, written)
    if out is not None:
        with publish(out.absolute()) as beside:
            beside.write_text(dump_site(profile), encoding="utf-8")
        output.say(f"wrote {out}")
    if as_json:
        output.show(dump_json(profile))
    elif out is None:
        output.show(dump_site(profile))
    else:
        output.show(summary(profile))
    _say_unknowns(profile)


@app.command("list")
def list_(as_json: bool = _AS_JSON) -> None:
    """List the sites that are known by name, and where each is described."""
    from hpcenv.base.record import dump_json
    from hpcenv.site.catalog import known_sites

    sites = known_sites()
    if as_json:
        output.show(dump_json({name: str(file) for name, file in sites.items()}))
        return
    width = max((len(name) for name in sites), default=0)
    for name, file in sites.items():
        output.show(f"{name.ljust(width)}  {file}")
    if not sites:
        output.say("no site is known by name:  hpcenv site detect -o site.toml")


@app.command()
def show(
    name: str = typer.Argument(..., help="A name from `site list`, or a file."),
    as_json: bool = _AS_JSON,
) -> None:
    """Show what is known of a site, and what is not."""
    from hpcenv.base.record import dump_json
    from hpcenv.site.profile import load_site
    from hpcenv.site.summary import summary

    profile = load_site(name)
    output.show(dump_json(profile) if as_json else summary(profile))
    _say_unknowns(profile)


def _say_unknowns(profile: SiteProfile) -> None:
    from hpcenv.site.summary import unknowns

    for fact, unknown in unknowns(profile):
        output.say(f"not known: {fact}: {unknown.why}\n    would tell: {unknown.ask}")
