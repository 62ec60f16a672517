"""Pages that vit writes: their elements, and what they ask for."""

import re
from html.parser import HTMLParser

REFERENCES = {
    "src",
    "href",
    "xlink:href",
    "action",
    "data",
    "poster",
    "srcset",
    "formaction",
    "background",
    "ping",
}
SHAPES = """JSON.stringify({
  width: innerWidth, reach: document.documentElement.scrollWidth,
  boxes: [...document.querySelectorAll('figure svg, table')].map(one => {
    const box = one.getBoundingClientRect(); return [one.tagName, box.width, box.height]; }),
  images: [...document.querySelectorAll('svg image')].map(one => one.getBoundingClientRect().width),
  cut: [...document.querySelectorAll('td')].filter(one => one.scrollWidth > one.clientWidth + 1).length,
  sticky: getComputedStyle(document.querySelector('tbody th')).position,
})"""


class Page(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def references(self) -> list[str]:
        return [attributes[key] for _, attributes in self.elements for key in REFERENCES & attributes.keys()]


def assert_fetches_nothing(text: str) -> None:
    """Every address in a page is in the page itself, or a folder beside it; nothing in it runs."""
    page = Page(text)
    for reference in page.references():
        assert reference.startswith(("#", "./", "data:")), reference
    assert not re.search(r"url\((?!#)|@import|https?:|//www", text.replace("'none'", ""))
    assert page.count("script") == page.count("iframe") == page.count("object") == page.count("form") == 0
    assert ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in [
        (one.get("http-equiv"), one.get("content")) for _, one in page.elements
    ]
