"""Tables of every command: aligned on a terminal of any width, escaped in Markdown, with nothing cut off."""

import pytest
from rich.cells import cell_len

from vitcli.output.document import Cell, Header, Row, Table, simple_table

NAMES = {"name": "id", "accuracy, %": "number", "comment": "text"}
ROWS = [
    ("dtd", "70.10", "a long remark " * 10),
    ("svhn-extra", "9.05", "short"),
]


def lines_of(width: int) -> list[str]:
    return simple_table(NAMES, ROWS).as_text(width=width).splitlines()


def test_numbers_are_aligned_right_and_texts_left():
    head, first, second = lines_of(500)

    assert head.startswith("name        accuracy, %  comment")
    assert first.startswith("dtd               70.10  a long remark")
    assert second == "svhn-extra         9.05  short"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_keeps_to_the_terminal_and_every_word_is_there(width):
    lines = lines_of(width)

    assert max(map(len, lines)) <= width
    assert sum(line.count("remark") for line in lines) == 10
    assert any(line.startswith("svhn-extra") for line in lines)  # an id stays in one piece


def test_a_table_that_fits_no_terminal_is_wider_and_loses_nothing():
    lines = simple_table(dict.fromkeys("abc", "number"), [("1" * 20, "2" * 20, "3" * 20)]).as_text(width=30)

    assert lines.splitlines()[1] == f"{'1' * 20}  {'2' * 20}  {'3' * 20}"


def test_a_mean_is_folded_before_its_deviation_where_nothing_else_gives_room():
    table = simple_table(
        {"data set": "text", "a": "number", "b": "number"}, [("dtd", "90.00 ± 0.10", "9.00 ± 0.10")]
    )

    assert table.as_text(width=80).splitlines()[1] == "dtd       90.00 ± 0.10  9.00 ± 0.10"
    assert [line.split() for line in table.as_text(width=26).splitlines()[-2:]] == [
        ["dtd", "90.00", "±", "9.00", "±"],
        ["0.10", "0.10"],
    ]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("vit_ti16_augreg_in1k.safetensors", 20, ["vit_ti16_augreg_", "in1k.safetensors"]),
        ("test, 3,669 images at lr 0.003", 12, ["test, 3,669", "images at lr", "0.003"]),
        ("fewshot-my-photos-20261122-060011", 18, ["fewshot-my-photos-", "20261122-060011"]),
        ("owner/name:tag", 8, ["owner/", "name:tag"]),
        ("x" * 50, 40, ["x" * 40, "x" * 10]),  # no place to break it
        ("猫" * 25, 40, ["猫" * 20, "猫" * 5]),  # each takes two columns
    ],
)
def test_names_are_broken_after_punctuation_and_numbers_never(text, width, lines):
    table = simple_table({"a": "text"}, [(text,)])

    assert table.as_text(width=width).splitlines()[1:] == lines


NAMED = ["finetune-demo-ViT-demo-8-20261122-150836", "fewshot-demo-ViT-demo-8-20261122-170000"]
BELOW = [
    "run",
    "  state                   top-1  data",
    NAMED[0],
    "  stopped, step 4 of 12   90.00  demo",
    NAMED[1],
    "  finished               100.00  demo",
]


def test_names_that_would_be_broken_stand_above_their_cells():
    cells = (("stopped, step 4 of 12", "90.00", "demo"), ("finished", "100.00", "demo"))
    rows = tuple(Row(Header(name), tuple(map(Cell, row))) for name, row in zip(NAMED, cells, strict=True))
    columns = (Header("state", kind="text"), Header("top-1"), Header("data", kind="text"))
    table = Table("list", "Runs", "", Header("run", kind="text"), columns, rows)
    kinds = {"run": "id", "state": "text", "top-1": "number", "data": "text"}
    of_files = simple_table(kinds, [(name, *row) for name, row in zip(NAMED, cells, strict=True)])

    assert table.as_text(width=60).splitlines() == of_files.as_text(width=60).splitlines() == BELOW
    assert len(table.as_text(width=80).splitlines()) == 3  # a line each where they fit


def test_a_titled_table_that_fits_no_terminal_is_a_card_for_each_row():
    cells = (Cell("90.00 ± 0.10", is_best=True), Cell(""), Cell("1,281,167"), Cell("vit --out 'a b'"))
    row = Row(Header("run-1", "finetune"), cells)
    columns = (Header("top-1"), Header("95 %"), Header("images"), Header("resume with", kind="command"))
    table = Table("t", "Runs", "", Header("run", kind="text"), columns, (row, row))

    card = "run-1, finetune\n  top-1: 90.00 ±\n    0.10*\n  images:\n    1,281,167\n"
    commands = "run-1, resume with:\n  vit --out 'a b'\n" * 2
    assert table.as_text(width=18) == card * 2 + commands
    assert max(map(len, table.as_text(width=80).splitlines())) <= 80


def test_a_clipped_text_ends_in_dots_where_the_terminal_is_narrow():
    table = simple_table({"name": "id", "from": "clipped"}, [("dtd", "a-very-long-id-of-the-hub")])

    assert table.as_text(width=80).endswith("a-very-long-id-of-the-hub\n")
    assert table.as_text(width=26).endswith("a-very-long-id-of-t…\n")


def test_letters_of_double_width_keep_the_columns_aligned():
    first, second = (
        simple_table({"class": "text", "top-1": "number"}, [("猫", "90.00"), ("cat", "8.00")])
        .as_text(width=80)
        .splitlines()[1:]
    )

    assert cell_len(first) == cell_len(second) == cell_len("class  90.00")


def test_control_characters_of_a_name_do_not_reach_the_terminal():
    assert "\x1b" not in simple_table({"file": "text"}, [("\x1b[2J.png",)]).as_text()


def test_markdown_marks_the_best_and_escapes_markup_but_no_underscore_inside_a_word():
    row = Row(Header("vit_b16 | <b>"), (Cell("91.00 ± 0.10", 0.91, 0.001, 3, is_best=True), Cell("_x_")))
    table = Table(
        "t", "", "", Header("network", kind="text"), (Header("top-1"), Header("by", kind="text")), (row,)
    )

    assert table.as_markdown().splitlines() == [
        "| network | top-1 | by |",
        "| --- | ---: | --- |",
        r"| vit_b16 \| &lt;b&gt; | **91.00** ± 0.10 | \_x\_ |",
    ]


def test_a_table_without_rows_is_its_headers():
    assert simple_table({"a": "text", "b": "number"}, []).as_text() == "a  b\n"
