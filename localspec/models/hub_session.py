"""The connection to the Hub: huggingface_hub without its side traffic, and its errors in plain words."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from localspec.errors import UnavailableError, UnreachableError, UserError

USUAL_ENDPOINT = "https://huggingface.co"
_MAX_RETRIES = 99
_TRUE = ("1", "ON", "YES", "TRUE")
_TOKEN_HINT = "make a token at huggingface.co/settings/tokens and set HF_TOKEN to it"


def endpoint() -> str:
    """Return the Hub's address, or HF_ENDPOINT. Raises UserError if that is not an address."""
    address = (os.environ.get("HF_ENDPOINT", "").strip() or USUAL_ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and address.isprintable() and " " not in address
    except ValueError:  # brackets or a port that cannot be
        is_address = False
    if not is_address:
        raise UserError(
            f"HF_ENDPOINT is not an address: `{address}`", f"write it like {USUAL_ENDPOINT}, or unset it"
        )
    return address


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids network traffic."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in _TRUE


def session() -> Any:  # noqa: ANN401 - huggingface_hub has changed its HTTP library before
    """Return huggingface_hub's HTTP client; raises UserError where the proxy settings make no sense."""
    quieten()
    from huggingface_hub import get_session

    try:
        return get_session()
    except OSError as error:
        raise UserError(
            f"the certificates cannot be read: {error}", "correct SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error
    except Exception as error:  # each HTTP library has its own for proxies that it cannot use
        raise UserError(
            f"the proxy settings cannot be used: {error}", "correct HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
        ) from error


def headers() -> dict[str, str]:
    """Return the headers of every request: the user agent, and the token if one is set."""
    quieten()
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from localspec.version import __version__

    made = build_hf_headers(library_name="localspec", library_version=__version__)
    return {str(name): str(value) for name, value in made.items()} | {"Accept-Encoding": "identity"}


class RefusedError(Exception):
    """The Hub rejects a request, with a status and perhaps a reason; the body is not read."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


@contextmanager
def answer(url: str, timeout_s: float, wanted: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Send a request to the Hub with more headers, and yield the unread response."""
    sent = headers() | dict(wanted or {})
    with session().stream("GET", url, headers=sent, timeout=timeout_s, follow_redirects=True) as response:
        if response.status_code >= 400:
            raise RefusedError(response.status_code, response.headers.get("X-Error-Code", ""))
        if response.status_code not in (200, 206):
            raise unlike_the_hub(f"it says HTTP {response.status_code}")
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise unlike_the_hub("it sends a web page")
        yield response


def quieten() -> None:
    """Turn off huggingface_hub's telemetry and its output on the terminal."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True  # it may have been imported before
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


@contextmanager
def plain_errors(what: str, place: Path | None = None) -> Iterator[None]:
    """Turn any error of the connection to the Hub into one `UserError`.

    `what` names the requested thing; `place` is its destination.
    """
    quieten()
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    if is_offline():
        raise offline(what)
    try:
        yield
    except OfflineModeIsEnabled:
        raise offline(what) from None
    except HFValidationError as error:
        raise UserError(
            f"there is no such name on Hugging Face: {what}: {error}", "write it as USER/REPO"
        ) from None
    except RefusedError as error:
        raise _refused(what, error) from error
    except UnicodeEncodeError:
        raise UserError("the token has an invalid character", _TOKEN_HINT) from None
    except OSError as error:
        raise disk_trouble(error, place) from error
    except Exception as error:
        if _kinds(error) & {"HTTPError", "InvalidURL"}:
            raise unreachable(error) from error
        raise


def retries(error: Exception) -> int:
    """Return the number of retries: few if a server ends its response early, none for odd responses.

    Nor if the Hub redirects to an impossible name.
    """
    kinds = _kinds(error)
    text = str(error)
    if _is_unresolved(text) and _proxy() is None and _host(error) != _endpoint_host():
        return 0
    if isinstance(error, RefusedError):
        return _MAX_RETRIES if error.status in (408, 429, 500, 502, 503, 504) else 0
    if kinds & {"TimeoutException", "NetworkError", "ProxyError"}:
        return _MAX_RETRIES
    return 2 if "ProtocolError" in kinds and ("closed" in text or "disconnected" in text) else 0


def _kinds(error: Exception) -> set[str]:
    """Classify an error by name: huggingface_hub has changed its HTTP library before."""
    return {kind.__name__ for kind in type(error).__mro__}


def disk_trouble(error: OSError, written_to: Path | None = None) -> UserError:
    """Return the error for a failed write."""
    named = error.filename or written_to
    place = f" at {named}" if named else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"the disk is full{place}", "free some space and pull again: the part so far is saved"
        )
    return UserError(
        f"the download cannot be written{place}: {error.strerror or error}",
        "HF_HUB_CACHE names another folder for downloads",
    )


def unlike_the_hub(why: str = "") -> UserError:
    """Return the error for a server that is not the Hub."""
    return UnreachableError(
        f"{endpoint()} is not a Hugging Face hub" + (f": {why}" if why else ""),
        "log in to this network in a browser, or correct HF_ENDPOINT",
    )


def unreachable(error: Exception) -> UserError:
    """Return the error for a missing response."""
    host = _host(error)
    text = str(error)
    proxy = _proxy()
    lowered = text.lower()
    if proxy is not None:
        return UnreachableError(
            f"{host} cannot be reached through the proxy {proxy}: {text}",
            "correct HTTPS_PROXY, or unset it if you need no proxy",
        )
    if _is_unresolved(text):
        return UnreachableError(
            f"the name {host} cannot be resolved", "check the network connection and HF_ENDPOINT"
        )
    if retries(error) < _MAX_RETRIES:
        if "closed" in text or "disconnected" in text:
            return UnreachableError(
                f"{host} closes connections early: {text}", "try again later; the part so far is saved"
            )
        return UnreachableError(
            f"{_endpoint_host()} does not speak HTTP: {text}",
            "try again later; if this repeats, correct HF_ENDPOINT",
        )
    if "certificate" in lowered:
        return UnreachableError(
            f"the certificate of {host} is not trusted: {text}",
            "check this computer's clock; behind a company's gateway, set SSL_CERT_FILE to its certificate",
        )
    is_late = "timeout" in type(error).__name__.lower()
    what = "does not answer in time" if is_late else f"cannot be reached: {text or type(error).__name__}"
    return UnreachableError(f"{host} {what}", "check the network connection and try again")


def _is_unresolved(text: str) -> bool:
    words = ("name or service", "name resolution", "nodename", "getaddrinfo")
    return any(word in text.lower() for word in words)


def _host(error: Any) -> str:  # noqa: ANN401 - one of the HTTP library's
    with suppress(AttributeError, RuntimeError):  # of the address that was asked last, where it is known
        return str(error.request.url.netloc.decode())
    return _endpoint_host()


def _endpoint_host() -> str:
    return urlsplit(endpoint()).netloc


def _proxy() -> str | None:
    parts = urlsplit(endpoint())
    proxy = getproxies().get(parts.scheme) or getproxies().get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    # without a password in front of it
    return proxy.rpartition("@")[2].rpartition("://")[2]


def offline(what: str, others: Sequence[str] = ()) -> UserError:
    """Return the error for a missing model offline; `others` of its repository are on this machine."""
    message = f"{what} is not on this computer, and HF_HUB_OFFLINE forbids to download it"
    if others:
        return UserError(message, f"downloaded from its repository: {', '.join(others)}")
    return UserError(message, "unset HF_HUB_OFFLINE, or choose a model that `localspec models` lists")


def _refused(what: str, error: RefusedError) -> UserError:
    status = error.status
    host = _endpoint_host()
    has_token = bool(headers().get("authorization"))
    if error.code == "GatedRepo" or (status == 403 and not has_token):
        then = "with the account of your HF_TOKEN" if has_token else f"then {_TOKEN_HINT}"
        return UnreachableError(
            f"{what} is gated: its owner wants you to accept terms first", f"open its page on {host}, {then}"
        )
    if error.code == "RevisionNotFound":
        return UnavailableError(f"{what} does not exist in this revision", "leave out what follows the @")
    if error.code == "EntryNotFound":
        return UnavailableError(
            f"{what} is no longer there", "pull the repository again without naming a file"
        )
    if error.code == "RepoNotFound" or status == 404 or (status == 401 and not has_token):
        return UnavailableError(
            f"{host} has no public repository {what}",
            "check the spelling" + ("" if has_token else f"; for a private or gated one, {_TOKEN_HINT}"),
        )
    later = "try again later; the part so far is saved"
    words, hint = ("has a server error", later) if status >= 500 else (f"refuses {what}", "check the name")
    if status in (401, 403):
        words = f"refuses access to {what} with this token"
        hint = _TOKEN_HINT
    elif status == 429:
        words = "wants fewer requests"
        hint = "wait a few minutes and pull again"
    return UnreachableError(f"{host} {words} (HTTP {status})", hint)
