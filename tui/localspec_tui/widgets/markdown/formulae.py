"""TeX formulae in Markdown: finding them, and writing them in Unicode, e.g. `x_i^2` as xᵢ²."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from markdown_it.rules_inline import StateInline

if TYPE_CHECKING:
    from pylatexenc.latex2text import LatexNodes2Text
    from pylatexenc.latexwalker import LatexNode, LatexWalker

LONGEST = 2_000  # characters that are read as one formula
# A dollar opens a formula if no space follows, and closes one if no word continues: prices and variables
# of a shell stay as they are.
_FORMULA = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$([^$]+)\$\$|\$(?![\s$])((?:[^$\\\n]|\\.)++)(?<!\s)\$(?![\w$])",
    re.DOTALL,
)
_PROSE = re.compile(r"(?=\d|.*[^\W\d_]{3})[^\\^_=+<>]*\s[^\\^_=+<>]*")  # between two prices
_SCRIPTS = {
    "^": str.maketrans(
        "0123456789+-=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVWαβγδεθφχ−∘*′⊤ ",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂᵅᵝᵞᵟᵋᶿᵠᵡ⁻°*′ᵀ ",
    ),
    "_": str.maketrans("0123456789+-=()aehijklmnoprstuvxβγρφχ− ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ₋ "),
}
_FRACTIONS = ("frac", "dfrac", "tfrac", "cfrac")
_WORDS = dict(  # that the library lacks
    pair.split("=")
    for pair in "implies=⟹ iff=⟺ land=∧ lor=∨ neg=¬ lt=< gt=> ne=≠ le=≤ ge=≥ Re=Re Im=Im |=‖ bmod=mod "
    "pmod=mod degree=° checkmark=✓ colon=: gets=← triangle=△ gcd=gcd det=det Pr=Pr cot=cot sec=sec dim=dim "
    "ker=ker left= right= middle= big= Big= bigg= Bigg= bigl= bigr= Bigl= Bigr= displaystyle= textstyle= "
    "limits= nolimits= boxed= operatorname= mathop= tag= nonumber= binom=C(%s,%s)".split()
)
_SPACED = re.compile(r"\s*([≠≤≥≈≡∼→⇒⟹⟺∈∉⊆⊂∪∩↦×·÷±])\s*")
_UNDER = re.compile(  # text above and below a limit or a sum, separate from what follows
    r"((?:(?:lim|max|min|sup|inf)_\([^()]*\)|[∑∏∫][²³¹ʰ-ˣᴬ-ᵪ\u2070-\u209c]*+(?:\^(?:\([^()]*\)|\S))?))(?=[\w(√])"
)
_ONE = re.compile(r"[\d.]+|\w[²³¹\u2070-\u209c\u1d62-\u1d6a]*(\([^()]*\))?|[^\W\d]{3,}|\([^()]*\)")


def find_formula(state: StateInline, silent: bool) -> bool:
    """Read a formula, as a rule of markdown-it: a token `formula`, whose markup is its source."""
    if state.src[state.pos] not in "$\\":
        return False
    found = _FORMULA.match(state.src, state.pos, state.pos + LONGEST)
    if found is None or (found[4] and _PROSE.fullmatch(found[4])):
        return False
    with suppress(ValueError):
        text = in_unicode(found[found.lastindex or 0])
        if not silent:
            token = state.push("formula", "", 0)
            token.content = text
            token.markup = found[0]
        state.pos = found.end()
        return True
    return False


@lru_cache(1024)  # text that is being written is parsed repeatedly
def in_unicode(source: str) -> str:
    """Return a formula as text; raises ValueError for what cannot be said so."""
    try:
        reader, writer = _converter()
        text = str(writer.nodelist_to_text(reader(source).get_latex_nodes()[0]))
    except Exception as error:  # whatever a model may write
        raise ValueError(f"no formula: {source}") from error
    if not text.strip():
        raise ValueError(f"nothing to be seen: {source}")
    text = _UNDER.sub(r"\1 ", _SPACED.sub(r" \1 ", text))
    return "\n".join(line for line in map(" ".join, map(str.split, text.split("\n"))) if line)


def _script(node: LatexNode, l2tobj: LatexNodes2Text) -> str:
    sign = str(node.specials_chars)
    text = _argument(node, l2tobj, 0)
    letters = _SCRIPTS[sign]
    if letters.keys() >= {ord(letter) for letter in text}:
        return text.translate(letters)
    return sign + (text if len(text) == 1 else f"({text})")


def _fraction(node: LatexNode, l2tobj: LatexNodes2Text) -> str:
    return "/".join(_grouped(_argument(node, l2tobj, number)) for number in (0, 1))


def _root(node: LatexNode, l2tobj: LatexNodes2Text) -> str:
    return f"{_argument(node, l2tobj, 0).translate(_SCRIPTS['^'])}√{_grouped(_argument(node, l2tobj, 1))}"


def _argument(node: LatexNode, l2tobj: LatexNodes2Text, number: int) -> str:
    found = node.nodeargd.argnlist[number]
    return "" if found is None else str(l2tobj.nodelist_to_text([found])).strip()


def _grouped(text: str) -> str:
    return text if _ONE.fullmatch(text) else f"({text})"


def _unknown(node: LatexNode) -> str:
    raise ValueError(node.macroname)


@cache
def _converter() -> tuple[Callable[[str], LatexWalker], LatexNodes2Text]:
    """Return the TeX parser and the text writer, with additional commands."""
    logging.getLogger("pylatexenc").setLevel(logging.CRITICAL)  # invalid input is shown unchanged
    from pylatexenc import latex2text as text  # 60 ms
    from pylatexenc import latexwalker as tex
    from pylatexenc import macrospec

    reading = tex.get_default_latex_context_db()
    writing = text.get_default_latex_context_db()
    argument = macrospec.MacroStandardArgsParser("{")
    reading.add_context_category(
        "own",
        prepend=True,
        macros=[macrospec.std_macro(name, "{{") for name in (*_FRACTIONS, "binom")],
        specials=[macrospec.SpecialsSpec(sign, argument) for sign in _SCRIPTS],
    )
    words = _WORDS | dict.fromkeys(_FRACTIONS, _fraction) | {"sqrt": _root}
    signs = dict.fromkeys(_SCRIPTS, _script) | {"''": "″"}
    writing.add_context_category(
        "own",
        prepend=True,
        macros=[text.MacroTextSpec(name, word) for name, word in words.items()],
        specials=[text.SpecialsTextSpec(sign, word) for sign, word in signs.items()],
    )
    writing.set_unknown_macro_spec(text.MacroTextSpec("", _unknown))
    writer = text.LatexNodes2Text(writing, strict_latex_spaces="based-on-source", keep_comments=True)
    return partial(tex.LatexWalker, latex_context=reading, tolerant_parsing=False), writer
