"""The tool that computes: exact fractions, and functions to 15 digits; every number is limited in size."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from threading import Event
from typing import Annotated

from localspec.errors import UserError
from localspec.values import shown

MAX_LENGTH = 1000  # characters of an expression
MAX_BITS = 10_000  # of a numerator or a denominator: 3,000 digits
_MAX_ARGUMENTS = 100
_MOST_PLACES = 60  # decimal places of a fraction that is shown as a decimal number
_LARGEST_FACTORIAL = 1000
_LARGEST_EXPONENT = 2000  # of ten, in a number as it is written
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "\u00a0": " "})
Number = Fraction | float
"""Exact, or a result of a function that has no exact one."""


@dataclass(frozen=True, slots=True)
class CalculateArguments:
    """Arguments of `calculate`."""

    expression: Annotated[str, "for example (1.1 + 2) ** 10 / 3, or sqrt(2) * sin(pi / 4)"]


def calculate(wanted: CalculateArguments, _stop: Event) -> str:
    """Return the value of an expression; raises UserError."""
    text = wanted.expression.translate(_SIGNS).strip()
    if len(text) > MAX_LENGTH:
        raise UserError(f"the expression has more than {MAX_LENGTH} characters", "compute it in parts")
    try:
        tree = ast.parse(text, mode="eval")
        return _in_digits(_Evaluator(text).value(tree.body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = f": {error.msg}" if isinstance(error, SyntaxError) else ""
        raise UserError(
            f"{shown(text)} is not an expression{why}", "write it as in (1 + 2) * 3 ** 4"
        ) from None
    except ZeroDivisionError:
        raise UserError(f"{shown(text)} divides by zero") from None
    except OverflowError:
        raise _too_large() from None


class _Evaluator:
    """Evaluates the parts of an expression: numbers, operators, and the functions that are listed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, node: ast.expr) -> Number:
        """Return the value of a part; raises UserError, ZeroDivisionError and OverflowError."""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return _limited(self._literal(node, value))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _limited(_OPERATORS[type(op)](self.value(left), self.value(right)))
            case ast.Name(id=name) if name in _CONSTANTS:
                return _CONSTANTS[name]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return self._call(name, arguments)
        raise self._unknown(node)

    def _literal(self, node: ast.expr, value: float) -> Fraction:
        """Return a number as it is written: 0.1 is a tenth."""
        if isinstance(value, int):
            return Fraction(value)
        written = (ast.get_source_segment(self._text, node) or repr(value)).replace("_", "").lower()
        exponent = written.partition("e")[2]
        if exponent and abs(int(exponent)) > _LARGEST_EXPONENT:
            raise _too_large()
        return Fraction(written)

    def _call(self, name: str, arguments: list[ast.expr]) -> Number:
        if len(arguments) > _MAX_ARGUMENTS:
            raise UserError(f"`{name}` has more than {_MAX_ARGUMENTS} arguments")
        try:
            return _limited(_FUNCTIONS[name](*map(self.value, arguments)))
        except (TypeError, ValueError):
            raise UserError(f"`{name}` cannot take these arguments") from None

    def _unknown(self, node: ast.expr) -> UserError:
        written = ast.get_source_segment(self._text, node) or self._text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
            return UserError(f"{shown(written)} has ^", "write a power as 2 ** 10")
        if isinstance(node, ast.Tuple):
            return UserError(
                f"{shown(written)} has commas", "write 1000000 or 1_000_000, and a point for decimals"
            )
        known = ", ".join([*_CONSTANTS, *_FUNCTIONS])
        return UserError(f"{shown(written)} cannot be computed", f"known are + - * / // % ** ( ), {known}")


def _limited(value: Number) -> Number:
    if isinstance(value, float):
        if math.isnan(value):
            raise UserError("the result is not a number")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> UserError:
    return UserError("a number in it has more than 3,000 digits", "use smaller numbers, or logarithms")


def _power(base: Number, exponent: Number) -> Number:
    """Return a power; its size is known before it is computed."""
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if base not in (0, 1, -1) and (bits - 1) * abs(exponent) > MAX_BITS:
            raise _too_large()
        return Fraction(base ** int(exponent)) if base else _power_of_zero(exponent)
    result: float | complex = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise UserError("a root of a negative number is not a real number")
    return result


def _power_of_zero(exponent: Fraction) -> Fraction:
    if exponent < 0:
        raise ZeroDivisionError
    return Fraction(int(exponent == 0))


def _root(value: Number) -> Number:
    """Return a square root, exact if there is one."""
    if isinstance(value, Fraction) and value >= 0:
        above = math.isqrt(value.numerator)
        below = math.isqrt(value.denominator)
        if (above * above, below * below) == (value.numerator, value.denominator):
            return Fraction(above, below)
    return math.sqrt(value)


def _factorial(value: Number) -> Fraction:
    number = _whole(value)
    if number > _LARGEST_FACTORIAL:
        raise _too_large()
    return Fraction(math.factorial(number))


def _whole(value: Number) -> int:
    if value != int(value):
        raise ValueError
    return int(value)


def _rounded(value: Number, places: Number = Fraction(0)) -> Fraction:
    """Return a number rounded to decimal places, halves away from zero as in school."""
    digits = _whole(places)
    if abs(digits) > _MOST_PLACES:
        raise ValueError
    scaled = abs(Fraction(value)) * Fraction(10) ** digits
    return (1 if value >= 0 else -1) * Fraction(math.floor(scaled + Fraction(1, 2))) / Fraction(10) ** digits


def _divided(left: Number, right: Number) -> Number:
    return left / right


def _whole_quotient(left: Number, right: Number) -> Number:
    quotient = left // right
    return Fraction(quotient) if isinstance(quotient, int) else quotient


def _with_floats(function: Callable[..., float]) -> Callable[..., Number]:
    return lambda *values: function(*map(float, values))


_CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e}
_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: _divided,
    ast.FloorDiv: _whole_quotient,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _power,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _rounded,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "sqrt": _root,
    "factorial": _factorial,
    "gcd": lambda *values: Fraction(math.gcd(*map(_whole, values))),
    "lcm": lambda *values: Fraction(math.lcm(*map(_whole, values))),
    "exp": _with_floats(math.exp),
    "log": _with_floats(math.log),
    "log2": _with_floats(math.log2),
    "log10": _with_floats(math.log10),
    "sin": _with_floats(math.sin),
    "cos": _with_floats(math.cos),
    "tan": _with_floats(math.tan),
    "asin": _with_floats(math.asin),
    "acos": _with_floats(math.acos),
    "atan": _with_floats(math.atan),
    "radians": _with_floats(math.radians),
    "degrees": _with_floats(math.degrees),
}


def _in_digits(value: Number) -> str:
    """Return a number in digits; ≈ before what is rounded."""
    if isinstance(value, float):
        return f"≈ {value:.15g}"
    if value.denominator == 1:
        return str(value.numerator)
    places = _places(value.denominator)
    if places is not None:
        digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
        return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    try:
        return f"{value} ≈ {float(value):.15g}"
    except OverflowError:
        return str(value)


def _places(denominator: int) -> int | None:
    """Return the number of decimal places that a fraction needs; None if it has no end, or is too long."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0:
            denominator = denominator // prime
            count = count + 1
        counts.append(count)
    places = max(counts)
    return places if denominator == 1 and places <= _MOST_PLACES else None
