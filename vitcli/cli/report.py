"""`vit report`: many runs in one report."""

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitcli.cli.help import RUN, UNDERSTAND
from vitcli.cli.options import Printing, command, option

app = typer.Typer()
Format = Literal["text", "markdown", "csv", "json", "html"]


@command(app, panel=UNDERSTAND, example="vit report runs/ --out report.html")
def report(
    *,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN",
        help="Output folders of vit finetune, pretrain, fewshot and evaluate, or folders of such "
        "(default: runs/).")] = None,
    list_: Annotated[bool, option("--list", RUN,
        "Only list the runs: state, top-1, data and age, the newest first.")] = False,
    out: Annotated[Path | None, option("--out", RUN,
        "Write the report to a .html, .md, .csv or .json file (default: print it).", "FILE")] = None,
    format_: Annotated[Format | None, option("--format", RUN,
        "text, markdown, csv, json or html (default: by the suffix of --out, else text).", "NAME")] = None,
    serve: Annotated[bool, option("--serve", RUN,
        "Serve the page on localhost, updated while runs are in progress; Ctrl-C ends it.")] = False,
    port: Annotated[int | None, option("--port", RUN,
        "With --serve: the port (default: any free one).", "N", min=0, max=65535)] = None,
    overwrite: Annotated[bool, option("--overwrite", RUN,
        "Replace --out even if it is not a report.")] = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Summarise runs as tables, learning curves and costs.

    Tables like the paper's (mean ± std, best in bold), as text or as one HTML file.
    """
    if port is not None and not serve:
        raise typer.BadParameter("--port belongs to --serve")
    if serve and (out or format_):
        raise typer.BadParameter("--serve shows a page and writes none: leave --out and --format out")
    if serve and list_:
        raise typer.BadParameter("--serve shows the whole report: leave --list out")
    if printing.as_json and format_ and not out:
        raise typer.BadParameter("--json and --format both say what to print: name one of them")
    from vitcli.output.atomic import check_out
    from vitcli.report import report as reports
    from vitcli.report.scan import default_places

    form = reports.format_of(out, format_)
    if list_ and form == "html":
        raise typer.BadParameter("--list is one table: text, markdown, csv or json")
    if out:
        check_out(out, overwrite=overwrite or reports.is_report(out))
    places = default_places(runs or [])
    report = reports.listed(places) if list_ else reports.read(places)
    if serve:
        return _serve(report.places, port or 0, printing)
    if out:
        return printing.show(reports.write(report, out, form), reports.summary)
    return printing.show(reports.as_json(report), lambda _: reports.rendered(report, form, base=Path()))


def _serve(places: tuple[str, ...], port: int, printing: Printing) -> int:
    """Serve the page of these folders until Ctrl-C; every request reads them again."""
    from vitcli.report import report as reports
    from vitcli.report.server import serve

    def announce(address: str) -> None:
        printing.show({"command": "report", "url": address}, lambda _: f"{address}  (Ctrl-C ends)")

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # nothing is lost: end quietly
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        serve(lambda: reports.page(reports.read(places), base=None), port=port, ready=announce)
    except KeyboardInterrupt:
        return 130
    return 0
