"""HTML to text: each message is one page, each row its title, the text that a reader sees, and its links.

    rocketcrew run pages:text --topic pages --group pages --embedded

The parser is the standard library's; for PDF put pypdf's `PdfReader(io.BytesIO(message.body))` in place of `Page`. A page
that takes longer than ten seconds is stopped and retried. A page that cannot be decoded will never be decoded: `Retry` with
`delay_level=-1` makes it a dead letter at once.
"""

from __future__ import annotations

from html.parser import HTMLParser

from rocketcrew import Message, Retry, handler

SCHEMA = "page string, title string, text string, words int, links array<string>"
HIDDEN = {"script", "style", "template", "noscript", "svg"}
INLINE = {"a", "abbr", "b", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "time", "u"}


@handler(schema=SCHEMA, soft_time_limit_s=10)
def text(message: Message) -> dict[str, object]:
    """One row. The property CHARSET names the encoding, which is UTF-8 otherwise."""
    try:
        html = message.body.decode(message.properties.get("CHARSET", "utf-8"))
    except (UnicodeDecodeError, LookupError) as error:
        raise Retry(delay_level=-1, reason=f"the page cannot be decoded: {error}") from error
    page = Page()
    page.feed(html)
    page.close()
    lines = [" ".join(line.split()) for line in "".join(page.seen).splitlines()]
    found = "\n".join(line for line in lines if line)
    title = " ".join("".join(page.title).split())
    return {"page": message.keys, "title": title, "text": found, "words": len(found.split()), "links": page.links}


class Page(HTMLParser):
    """What a reader sees of a page, in pieces; a line ends where an element begins or ends that is not inside a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[str] = []
        self.title: list[str] = []
        self.links: list[str] = []
        self._hidden = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in HIDDEN
        self._in_title = tag == "title" and not self._hidden
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
        self.seen.append("" if tag in INLINE else "\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in HIDDEN))
        self._in_title = False
        self.seen.append("" if tag in INLINE else "\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            (self.title if self._in_title else self.seen).append(data)
