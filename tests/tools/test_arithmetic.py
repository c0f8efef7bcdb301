from __future__ import annotations

import random
from fractions import Fraction
from threading import Event

import pytest

from localspec.errors import UserError
from localspec.tools.arithmetic import CalculateArguments, calculate


def value(expression: str) -> str:
    return calculate(CalculateArguments(expression), Event())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1 + 0.2", "0.3"),
        ("1/3", "1/3 ≈ 0.333333333333333"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("-7 // 2", "-4"),
        ("-1.25", "-1.25"),
        ("3 × 4 ÷ 8 − 1", "0.5"),
        ("sqrt(2.25)", "1.5"),
        ("sqrt(2)", "≈ 1.4142135623731"),
        ("round(2.675, 2)", "2.68"),
        ("round(-0.5)", "-1"),
        ("factorial(20) % 1_000_007", str(2432902008176640000 % 1000007)),
        ("gcd(84, 36) + lcm(4, 6)", "24"),
        ("123456789.123456789123456789 * 10", "1234567891.23456789123456789"),
        ("1e3", "1000"),
        ("max(1, 2.5, 2)", "2.5"),
        ("0 ** 0", "1"),
        ("(-8) ** 3", "-512"),
        ("2 ** -2", "0.25"),
        (" cos(0) ", "≈ 1"),
    ],
)
def test_an_expression_is_computed(expression: str, expected: str) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("9 ** 9 ** 9 ** 9", "3,000 digits"),
        ("2 ** 2 ** 40", "3,000 digits"),
        ("(10 ** 3000) ** 3000", "3,000 digits"),
        ("factorial(10 ** 9)", "3,000 digits"),
        ("factorial(factorial(7))", "3,000 digits"),
        ("1e999999999", "3,000 digits"),
        ("1e-999999999", "3,000 digits"),
        ("0.5 ** 99999999", "3,000 digits"),
        ("exp(10 ** 6)", "3,000 digits"),
        ("1 / 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("(-2) ** 0.5", "not a real number"),
        ("sqrt(-1)", "cannot take"),
        ("2 ^ 8", "write a power as 2 ** 10"),
        ("1,000 + 1", "write 1000000"),
        ("1 +", "is not an expression"),
        ("(" * 900, "is not an expression"),
        ("-" * 900 + "1", ""),
        ("1" * 1001, "1000 characters"),
        ("", "is not an expression"),
        ("x", "cannot be computed"),
        ("True + 1", "cannot be computed"),
        ("'a' * 10 ** 9", "cannot be computed"),
        ("[1] * 10 ** 9", "cannot be computed"),
        ("__import__('os').system('true')", "cannot be computed"),
        ("(1).__class__", "cannot be computed"),
        ("lambda: 1", "cannot be computed"),
        ("round(1, 10 ** 9)", "cannot take"),
        ("gcd(1.5, 2)", "cannot take"),
        ("1j ** 2", "cannot be computed"),
    ],
)
def test_what_is_no_sum_or_too_large_is_refused(expression: str, complaint: str) -> None:
    if complaint:
        with pytest.raises(UserError, match=complaint.replace("*", r"\*")):
            value(expression)
    else:
        assert value(expression) == "1"


@pytest.mark.slow
def test_random_sums_are_exact() -> None:
    generator = random.Random(1)

    def expression(depth: int) -> str:
        if depth == 0 or generator.random() < 0.2:
            return str(generator.randint(0, 50))
        left, right = expression(depth - 1), expression(depth - 1)
        return f"({left} {generator.choice(['+', '-', '*', '/'])} {right})"

    compared = 0
    for _ in range(300):
        text = expression(4)
        exact = "".join(f"Fraction({part})" if part.isdigit() else part for part in _tokens(text))
        try:
            expected = eval(exact, {"Fraction": Fraction})  # noqa: S307 - made here
        except ZeroDivisionError:
            with pytest.raises(UserError, match="divides by zero"):
                value(text)
            continue
        assert Fraction(value(text).partition(" ≈")[0]) == expected
        compared += 1
    assert compared > 200


def _tokens(text: str) -> list[str]:
    return text.replace("(", "( ").replace(")", " )").split(" ")
