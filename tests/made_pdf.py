"""PDF files written byte by byte, sound ones and ones that attack their reader."""

from __future__ import annotations

import zlib

CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
FONT_USE = b"/Font << /F1 5 0 R >>"


def pdf(objects: list[bytes]) -> bytes:
    """Return a file of these objects, numbered from 1; the first is its catalog."""
    data, offsets = b"%PDF-1.7\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    head = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    return data + head + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(data))


def stream(content: bytes, entries: bytes = b"") -> bytes:
    """Return an object with a content."""
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), entries, content)


def packed(content: bytes) -> bytes:
    """Return an object with a compressed content."""
    return stream(zlib.compress(content, 9), b"/Filter /FlateDecode")


def page(content: int = 4, resources: bytes = FONT_USE) -> bytes:
    """Return a page with the content of another object."""
    start = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
    return b"%s /Contents %d 0 R /Resources << %s >> >>" % (start, content, resources)


def pages(kids: bytes, count: int = 1) -> bytes:
    """Return a tree of pages."""
    return b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, count)


def written(text: str) -> bytes:
    """Return a content that shows lines of text."""
    shown = b" ".join(b"(%s) Tj T*" % line.encode("latin-1") for line in text.split("\n"))
    return b"BT /F1 12 Tf 14 TL 72 720 Td %s ET" % shown


def text_pdf(*texts: str) -> bytes:
    """Return a file with a page for each text."""
    count = len(texts)
    kids = b" ".join(b"%d 0 R" % (6 + 2 * place) for place in range(count))
    each = [part for place, text in enumerate(texts) for part in (page(7 + 2 * place), stream(written(text)))]
    return pdf([CATALOG, pages(kids, count), b"null", b"null", HELVETICA, *each])


def one_page(content: bytes, resources: bytes = FONT_USE, *more: bytes) -> bytes:
    """Return a file whose page has the content of this object; more objects have the numbers from 6 on."""
    return pdf([CATALOG, pages(b"3 0 R"), page(4, resources), content, HELVETICA, *more])


SOUND = text_pdf("Hello")
FORM = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>"
ATTACKS = {
    "far more blanks than bytes": one_page(packed(b" " * 2**27)),
    "packed twice": one_page(
        stream(zlib.compress(zlib.compress(b"0" * 2**27, 9), 9), b"/Filter [/FlateDecode /FlateDecode]")
    ),
    "pages that contain themselves": pdf([CATALOG, pages(b"2 0 R")]),
    "pages without end": pdf(
        [CATALOG, *(pages(b"%d 0 R " % next_one * 10, 10**9) for next_one in range(3, 12)), page(4)]
    ),
    "a deep tree of pages": pdf([CATALOG, *(pages(b"%d 0 R" % below) for below in range(3, 5000)), page(4)]),
    "deep brackets": one_page(stream(b"[" * 500_000)),
    "deep dictionaries": pdf([CATALOG + b"<< /A " * 50_000, pages(b"3 0 R"), page(), b"null", HELVETICA]),
    "a drawing of itself": one_page(
        stream(b"/X Do"), b"/XObject << /X 6 0 R >>", stream(b"/X Do " * 1000, FORM % 6)
    ),
    "drawings of drawings": one_page(
        stream(b"/X Do"),
        b"/XObject << /X 6 0 R >>",
        *(stream(b"/X Do " * 10, FORM % below) for below in range(7, 19)),
        stream(written("deep")),
    ),
    "a picture without an end": one_page(stream(b"BI /W 1 /H 1 /BPC 8 /CS /G ID " + b"x" * 1_000_000)),
    "a huge map of signs": pdf(
        [
            CATALOG,
            pages(b"3 0 R"),
            page(),
            stream(written("text")),
            b"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /ToUnicode 6 0 R >>",
            stream(b"begincmap 1 beginbfrange <00000000> <FFFFFFFF> <0000> endbfrange endcmap"),
        ]
    ),
    "a length that is itself": pdf(
        [CATALOG, pages(b"3 0 R"), page(), b"<< /Length 4 0 R >>\nstream\nBT ET\nendstream", HELVETICA]
    ),
    "a table that begins again": SOUND.replace(
        b"/Root 1 0 R", b"/Root 1 0 R /Prev %d" % SOUND.index(b"xref\n0")
    ),
    "two billion pages": SOUND.replace(b"/Count 1", b"/Count 2000000000"),
    "half of it": SOUND[: len(SOUND) // 2],
    "its first line": b"%PDF-1.7\n",
    "noise": b"%PDF-1.7\n" + bytes(range(256)) * 500,
}
