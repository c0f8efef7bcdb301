"""The tool that fetches a page of the web as text; HTML becomes Markdown, without menus and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Annotated

from localspec.errors import UserError
from localspec.storage.text_file import decode_text

if TYPE_CHECKING:
    from localspec.tools.web.download import Document

_HTML = ("text/html", "application/xhtml+xml")
_TEXTS = (
    "application/json",
    "application/xml",
    "application/javascript",
    "application/toml",
    "application/yaml",
)


@dataclass(frozen=True, slots=True)
class FetchArguments:
    """Arguments of `fetch_page`."""

    url: Annotated[str, "address with https:// or http://"]


@dataclass(frozen=True, slots=True)
class PageFetcher:
    """Fetches pages; `private_hosts` may be reached although they are not public."""

    private_hosts: tuple[str, ...] = ()

    def preview(self, wanted: FetchArguments) -> str:
        """Check the address; raises UserError."""
        from localspec.tools.web.download import checked  # 20 ms of HTTP and TLS

        checked(wanted.url)
        return ""

    def fetch(self, wanted: FetchArguments, stop: Event) -> str:
        """Return the text of a page; raises UserError, and Cancelled."""
        from localspec.tools.web.download import download

        document = download(wanted.url, self.private_hosts, stop)
        return page_text(document) or f"`{document.url}` has no text"


def page_text(document: Document) -> str:
    """Return the text of a document; raises UserError if it has none."""
    kind = document.kind
    if kind in _HTML:
        return _markdown(_decoded(document), document.url)
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        return _decoded(document).replace("\r\n", "\n")
    raise UserError(f"`{document.url}` is {kind}, not text", "only text and HTML can be read")


def _decoded(document: Document) -> str:
    try:
        if document.charset:
            return document.data.decode(document.charset, "replace")
    except LookupError:  # no such encoding
        pass
    try:
        return decode_text(document.data, f"`{document.url}`")
    except UserError:
        return document.data.decode("cp1252", "replace")


def _markdown(html: str, url: str) -> str:
    try:
        import html_to_markdown as converter  # 40 ms, and optional
    except ImportError:
        hint = "the user can install it: pip install 'localspec[web]'"
        raise UserError("HTML pages need the Python package html-to-markdown", hint) from None
    options = converter.ConversionOptions(
        extract_metadata=False,
        skip_images=True,
        base_url=url,
        preprocessing=converter.PreprocessingOptions(
            enabled=True, preset=converter.PreprocessingPreset.AGGRESSIVE
        ),
    )
    try:
        text: str = converter.convert(html, options).content or ""
    except Exception as error:  # noqa: BLE001 - whatever a broken page raises
        raise UserError(f"`{url}` cannot be read as HTML: {error}") from None
    return text.strip()
