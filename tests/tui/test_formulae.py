"""Formulae read as users write them; prices, code and what is not known stay as they are."""

from __future__ import annotations

import pytest
from textual.geometry import Offset
from textual.selection import Selection

from localspec_tui.widgets.markdown.parse import GrowingMarkdown, build
from localspec_tui.widgets.markdown.prose import GrowingProse
from tests.tui.transcripts import Host


def text(source: str) -> str:
    return "\n".join(block.content.plain for block in build(source))


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (r"$E = mc^2$", "E = mc²"),
        (r"so \(x_{i}^{n+1}\), then", "so xᵢⁿ⁺¹, then"),
        (r"$$\alpha \to \infty$$", "α → ∞"),
        ("\\[\n\\frac{-b \\pm \\sqrt{b^2 - 4ac}}{2a}\n\\]", "(-b ± √(b² - 4ac))/(2a)"),
        (r"$\sum_{i=1}^{n} i = \frac{n(n+1)}{2}$", "∑ᵢ₌₁ⁿ i = n(n+1)/2"),
        (r"$\sum_{k=1}^{\infty} \frac{1}{k^2} \int_0^1\frac{x}{2}$", "∑ₖ₌₁^∞ 1/k²∫₀¹ x/2"),
        (r"$\text{speed} \in \mathbb{R}^2$", "speed ∈ ℝ²"),
        (r"$\lim_{x \to 0} \frac{\sin x}{x} = 1$", "lim_(x → 0) (sin x)/x = 1"),
        (r"$P(A \mid B) \iff \left(\frac12\right)$", "P(A | B) ⟺ (1/2)"),
        (r"$$\begin{aligned} a &= b \\ &= c \end{aligned}$$", "a = b\n= c"),
        (r"$y_{i,j} \cdot \sqrt[3]{8}$", "y_(i,j) · ³√8"),
        ("| a |\n|---|\n| $x^2$ |", "x²"),
    ],
)
def test_formula_reads_as_users_write_it(source: str, seen: str) -> None:
    shown = "\n".join(block.at(60).plain for block in build(source))
    assert shown.rstrip().endswith(seen)


@pytest.mark.parametrize(
    "source",
    [
        "It is $5 and $10.",
        "From $5 to 10$ a month",
        "($5, or in Canada 7 US$)",
        "PATH=$HOME/bin:$PATH",
        "a $ b $ c",
        r"$\unheard{of}$",
        r"$\frac{a$",
        "an open $x^2",
    ],
)
def test_what_is_not_a_formula_stays(source: str) -> None:
    assert text(source) == source


def test_code_stays() -> None:
    assert "$x^2$" in text("`$x^2$` and\n\n```sh\necho $x^2$\n```")
    assert "echo $x^2$" in text("```sh\necho $x^2$\n```")


def test_formula_is_shown_when_it_is_whole() -> None:
    growing = GrowingMarkdown()
    for letter in "so $x^2$":
        growing.append(letter)
        shown = growing.blocks[-1].content.plain
        assert shown in {"so", "so x²"} or shown == "so $x^2$"[: len(shown)]
    assert shown == "so x²"


def test_nothing_that_a_model_writes_is_too_much() -> None:
    for source in (
        "$" + "{" * 3_000 + "$",
        "\\(" * 1_000,
        "$" + "x^{" * 400 + "}" * 400 + "$",
        r"$\input{/x}$",
    ):
        assert text(source)


@pytest.mark.asyncio
async def test_selected_formula_is_copied_as_it_was_written() -> None:
    async with Host().run_test(size=(60, 10)) as pilot:
        prose = GrowingProse("one\n\nso $x^2$ and \\(\\alpha\\) end")
        await pilot.app.screen.mount(prose)
        await pilot.pause()
        assert prose.get_selection(Selection(None, None)) == ("one\n\nso $x^2$ and \\(\\alpha\\) end", "\n")
        assert prose.get_selection(Selection(Offset(1, 2), Offset(9, 2))) == ("o $x^2$ and", "\n")
        assert prose.get_selection(Selection(Offset(4, 2), None)) == ("² and \\(\\alpha\\) end", "\n")
