"""The command about finished and unfinished runs together: report."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.output import text

app = typer.Typer()
# fmt: off
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help=
    "Folders of vit finetune, pretrain, fewshot and evaluate --out, or folders that have such in them.")]
Out = Annotated[Path | None, options.option("--out", options.RUN,
    "Write the report to this file: .html, .md, .csv or .json. On standard output if left out.", "FILE")]
Format = Annotated[str | None, options.option("--format", options.RUN,
    "text, markdown, csv, json or html; by the ending of --out if left out.", "NAME")]
Serve = Annotated[bool, options.option("--serve", options.RUN,
    "Show the page on this machine's own address, up to date while runs go on; Ctrl-C ends it.", None)]
Port = Annotated[int | None, options.option("--port", options.RUN,
    "With --serve: any free one if left out.", "N", min=0, max=65535)]
Overwrite = Annotated[bool, options.option("--overwrite", options.RUN,
    "Replace --out even if it is no report.", None)]
# fmt: on


@app.command(epilog="Example: vit report runs/ --out report.html")
def report(
    runs: Runs,
    out: Out = None,
    format_: Format = None,
    serve: Serve = False,
    port: Port = None,
    overwrite: Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Runs to tables like the paper's (mean ± std, best marked), curves and costs: text, or one HTML file."""
    out = Path(out) if out else None
    if port is not None and not serve:
        raise typer.BadParameter("--port belongs to --serve")
    if serve and (out or format_):
        raise typer.BadParameter("--serve shows a page and writes none: leave --out and --format out")
    if as_json and format_ and not out:
        raise typer.BadParameter("--json and --format both say what to print: name one of them")
    from vitcli.output.atomic import check_out
    from vitcli.report import report as command

    form = command.format_of(out, format_)
    if out:
        check_out(out, overwrite=overwrite or command.is_report(out))
    found = command.read(runs)
    if serve:
        return _serve(found.places, port or 0, as_json)
    if out:
        return text.show(command.write(found, out, form), as_json, command.summary)
    if as_json:
        return text.show_json(command.told(found))
    text.write(command.rendered(found, form, base=Path()))
    return 0


def _serve(places: tuple[str, ...], port: int, as_json: bool) -> int:
    """The page of these folders until Ctrl-C; every request reads them anew."""
    from vitcli.output.html import POLICY
    from vitcli.report import report as command
    from vitcli.report.server import serve

    def tell(address: str) -> None:
        text.show(
            {"command": "report", "url": address}, as_json, lambda told: f"{told['url']}  (Ctrl-C ends)"
        )

    headers = {
        "Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
    }  # fmt: skip
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # it ends what has nothing to save, in silence
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        serve(lambda: command.live_page(places), port=port, headers=headers, ready=tell)
    except KeyboardInterrupt:
        return 130
    return 0
