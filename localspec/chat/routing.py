"""Tell from a message whether it asks for help with a program; pure, and a fraction of a millisecond.

What programs look like decides at once; else points are added for their signs and for their words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    pass


NAMES = r"""
python(?:\d|ie|iem)?, java ?script, js, typescript, c\+\+, c#, golang, haskell, kotlin, php, perl,
matlab, fortran, cobol, lua, vba, (?:my|postgre)?sql, sqlite, postgres, html5?, css, bash, powershell,
awk, grep, regex(?:p|es)?, apis?, github, gitlab, git, docker[\w-]*, kubernetes, kubectl, numpy, pandas,
pytorch, tensorflow, django, fastapi, flask, node\.?js, vue\.?js, react\.?js, next\.?js, jquery,
webpack, tailwind, spring boot, rails, laravel, pygame, swiftui, arduino, opengl, cuda, g\+\+, gcc,
clang, cmake, makefile, cargo, npm, pip, vim, emacs, linux, ubuntu, ssh, nginx, terraform, ansible,
jenkins, systemd, crontab, selenium, pytest, junit, unittest, leetcode, virtualenv, venv, algorithms?,
arrays?, pointers?, pseudo-?code, closures?, lambdas?, decorators?, iterators?, enums?, dict, dataframe,
mutex(?:es)?, deadlocks?, concurrency, callbacks?, middleware, namespaces?, polymorphism, async, int,
null, boolean, quicksort, merge ?sort, bubble sort, binary (?:search|tree), linked list, hash
?(?:map|set|table)s?, substrings?, palindrom\w*, refactor\w*, debug\w*, compil(?:e[rs]?|ing|ieren),
pars(?:e|er|ing), docstrings?, type hints?, type annotations?, unit tests?, fixtures?, one-liner, big[-
]o, time complexity, race condition, null pointer, memory leaks?, off-by-one, garbage collect\w+,
(?:for|while)[- ]loops?, syntax ?(?:error|fehler)s?, error handling, object-oriented, dependency
injection, design patterns?, source code, this code, my code, code reviews?, snake case, camel case,
pull request, merge conflict, (?:last|latest|previous|squash) commits?, (?:database|sql)
(?:schema|table)s?, users table, primary key, auto-increment, index on, lru cache, (?:get|post|put)
requests?, tcp, udp, web ?sockets?, http\w*, url, cors, localhost, backend, frontend, div, navbar,
dropdown, checkbox, flexbox, (?:click|event) handlers?, command[- ]line, stdin, stdout, environment
variables?, config file, programmier\w*, programmation, programación, программирован\w*
"""  # nearly always of programs: a message with one of them is

UNSPACED = r"""
代码, 函数, 编程, 数组, 算法, 变量, 报错, 脚本, 爬虫, コード, 関数, プログラム, 配列, 変数, スクリプト,
辞書, 파이썬, 함수, 배열, 자바스크립트, بايثون, питон\w*
"""  # the same in languages that part words otherwise

LANGUAGES = "C|R|Go|Rust|Java|Ruby|Swift|Scala|React|Zig|Julia|Lua"
"""Names with other meanings, which tell when they follow `in` or stand before `code` and the like."""

WORDS = r"""
code, coding, functions?, method, programs?, script, class, classes, variables?, loops?,
dictionar(?:y|ies), strings?, integers?, bugs?, exceptions?, threads?, struct, stack, heap, recursion,
recursive, databases?, query, server, endpoint, framework, interface, generics, commit, repository,
component, dependency, rust, java, ruby, implement, errors?, terminal, shell, software, json, yaml, xml,
funktion(?:en)?, programm, schleife, klasse, variablen?, skript, datenbank, quelltext, objekten?,
fehler, zeile, fonctions?, programme, boucle, tableau, classe, requête, récursive, dictionnaire,
función, funciones, programa, bucle, código, clase, arreglo, pila, cola, função, laço, vetor, funzione,
codice, ciclo, programma, funkcj[aęi]\w*, pętl\w*, functie, lus, функци\w*, код\w{0,2},
программ(?:а|у|ы|ой|е), цикл\w*, массив\w*, скрипт\w*, переменн\w*, структур\w*, строк\w*
"""  # programmers use them, and others, too: it takes two

UNSPACED_WORDS = "程序, 循环, 列表, バグ, リスト, 코드, دالة, كود, مصفوفة"

ELSEWHERE = r"""
(?:dress|zip|postal|post|area|bar|qr|morse|penal|civil|tax|moral|building|promo|discount) codes?, codes?
of (?:conduct|honou?r|ethics), functions? of (?:the|a|an) (?!code|class|program)\w+, funktion
(?:hat|haben), class (?:trip|schedule|reunion|action), (?:dance|yoga|cooking|each) class(?:es)?, island
of java, (?:film|movie|video|play|tv) scripts?, scripts? for (?:\S+
){1,4}(?:play|film|movie|video|podcast|show|sketch), (?:workout|training|exercise|tv|degree) programs?,
exceptions? to the, software engineers?, index funds?
"""  # where those words mean something else

PROSE = r"""
poems?, haikus?, limericks?, sonnets?, stor(?:y|ies), novels?, essays?, jokes?, songs?, lyrics, play,
cover letter, speech, fairy tales?, recipes?, e-?mails?, letter, roleplay, gedichte?, geschichten?,
märchen, rezepte?, brief, poèmes?, histoires?, recettes?, lettre, cuentos?, poemas?, recetas?, carta,
poesi[ae], storie, ricett[ae], wierszy?k?, bajk\w+, verhaal, стих\w*, рассказ\w*, сказк\w*, рецепт\w*,
письмо
"""  # wanted before any program is named, it is a text, whatever it is about

UNSPACED_PROSE = "诗, 故事, 俳句, 物語"

REFERRING = r"""
it, its, that, this, these, those, them, they, same, instead, again, shorter, longer, simpler, faster,
better, above, previous, output, result, last one, das, dies\w*, nochmal, stattdessen, kürzer, länger,
einfacher, schneller, ça, cela, celui, plus court, l'expliquer, eso, esto, lo mismo, isso, isto, questo,
quello, это\w?, его, её, короче
"""  # to what came before

CONNECTING = r"""
and, but, now, also, so, then, ok, okay, thanks, thank you, how about, what about, what if, und, aber,
jetzt, et, mais, maintenant, y, pero, ahora, e, mas, agora, ma, ora, а, и, но, теперь
"""  # at the beginning

UNSPACED_REFERRING = "这, 那, 它, 再, 改, これ, それ, もっと, もう一度"

NEW_TOPIC = r"""
something else, another (?:topic|question), unrelated, change of topic, etwas anderes, andere frage,
autre (?:chose|question), otra (?:cosa|pregunta)
"""  # at the beginning


def either(entries: str) -> str:
    """Return the regular expression of any of the entries."""
    return "|".join(entry.strip() for entry in entries.replace("\n", " ").split(", "))


Route = Literal["coding", "general"]

ENOUGH = 1.5  # points that make a message one about programs,
ENOUGH_ALREADY = 0.75  # and after another such one
NAME, SIGN, WORD = 2.0, 1.0, 0.75
SHORT = 4  # words of a message that can only mean what came before
FOLLOWS_WITHIN = 25  # words of one that may refer to it
READ = 4_000  # characters of a message that are looked at

_SOURCES = frozenset(
    "asm bash bat c cc cl clj cmake cpp cs css cu cxx dart el erl ex exs f90 go gradle groovy h hpp hs html "
    "ipynb java jl js jsx kt lua m ml nix php pl proto ps1 py pyi r rb rs s scala scss sh sql svelte swift "
    "tf ts tsx v vb vhd vue xml zig".split()
)
_LONG_ENDINGS = "|".join(sorted(ending for ending in _SOURCES if len(ending) > 1))
_CERTAIN = re.compile(
    r"""
    ^[ \t]*(?:```|~~~)
    | Traceback\ \(most | \b[A-Z]\w*(?:Error|Exception)\b | \berror(?:\[E\d+\]|:\s) | \bnpm\ ERR!
    | \bundefined\ reference\b | \bsegmentation\ fault\b | \bsegfault | \bstack\ ?trace\b | \bexit\ code\ \d
    | ^[ \t]*(?:\#include\s*[<"] | import\ [\w.{*]+(?:\ from\b|;|[ \t]*$|\ as\ ) | from\ [\w.]+\ import\ )
    | ^[ \t]*(?:async\ )?(?:def|class|fn|func|function|struct|interface|enum)\ \w+[ \t]*[({:<]
    | \b(?:public|private|protected)\s+(?:static\s+)?\w+[\w<>\[\]]*\s+\w+\s*\(
    | \b(?:let|const|var|int|float|double|char|auto|bool|string)\s+(?:mut\s+)?[*&]?\w+(?:\s*:\s*[\w<>]+)?\s*=
    | \bfunction\s+\w*\s*\( | \bSELECT\b.+\bFROM\b | \b(?:INSERT\ INTO|CREATE\ TABLE|DELETE\ FROM)\b
    | ^[ \t]*(?:for|while|if|elif)\b.+:[ \t]*$ | \bwhile\s+True\b | \bfor\s+\w+\s+in\s+range\(
    | \b(?:System\.out|console\.log|printf?|println!?|len|std::\w+)\s*\(
    | </?(?:div|ul|li|span|body|html|head|script|table|tr|td|img|a|p|h[1-6]|button|input|form)\b[^>\n]*>
    | ^[ \t]*\$\ \w+
    | \b(?:git|docker|kubectl|cargo|npm|pip|apt|curl|chmod|grep|sed|awk)\ (?:-{1,2}\w|[a-z]+\ -)
    | \b(?:git|docker|kubectl)\ (?:rebase|merge|commit|push|pull|clone|stash|reset|run|build|get|compose)\b
    | \b(?:Dockerfile|package\.json|Cargo\.toml|pyproject\.toml|CMakeLists)\b
    """
    rf"| \b[\w-]+\.(?:{_LONG_ENDINGS})\b | \b[\w-]+\.[ch](?=[\s:,)]|$)",
    re.VERBOSE | re.MULTILINE,
)
_QUOTED = re.compile(r"^(```+|~~~+) *(?:text|txt|markdown|md)\n.*?^\1", re.MULTILINE | re.DOTALL)
_SIGNS = re.compile(  # groups are kinds of signs
    r"(`[^`\n]+`)"
    r"|(\b[a-z]+_[a-z\d]\w*|\b__\w+__\b)"
    r"|(\b(?!iPhone|iPad|iMac|iOS|iCloud|iTunes|macOS|eBay|eMail|vCard|pH)[a-z]+[A-Z][a-z]\w*)"
    r"|(\w\((?!s\))[\w\"'., =\[\]*]*\)(?=[\s;.,?!:)]|$))"
    r"|(==|!=|=>|->|::|&&|\|\||\+=|<=|>=|\*\*|;[ \t]*$|\{[ \t]*$|^[ \t]*\}|\[\d+\]|[\[{]['\"])"
    r"|(^[ \t]*\w+ = (?=\S))"
    r"|((?<!\S)--?[a-z][\w-]*=?(?!\S))"
    r"|(^(?: {4}|\t)[^\n]*[=(){};:]\s?\S*$)",
    re.MULTILINE,
)
_NAMED = (
    re.compile(rf"(?<![A-Za-z0-9_.-])(?:{either(NAMES)})(?![A-Za-z0-9_])|{either(UNSPACED)}", re.IGNORECASE),
    re.compile(
        rf"\b(?:in|en|em|na|на|w|в) (?:{LANGUAGES})\b|\b(?:{LANGUAGES})(?:で| (?:project|code|program|"
        r"module|package|app|component|class)\b)"
    ),
    re.compile(
        r"\b(?:write|implement|create|make|build|develop|generate|design|give me|need|my|this) (?:\w+ ){0,3}"
        r"(?:function|program|script|class|method|query|code|parser|website|web (?:page|site|app)|app)\b",
        re.IGNORECASE,
    ),
)
_WORDS = re.compile(rf"\b(?:{either(WORDS)})\b|{either(UNSPACED_WORDS)}", re.IGNORECASE)
_ELSEWHERE = re.compile(rf"\b(?:{either(ELSEWHERE)})\b", re.IGNORECASE)
_PROSE = re.compile(rf"\b(?:{either(PROSE)})\b|{either(UNSPACED_PROSE)}", re.IGNORECASE)
_REFERRING = re.compile(
    rf"\b(?:{either(REFERRING)})\b|^\W*(?:{either(CONNECTING)})\b|{either(UNSPACED_REFERRING)}", re.IGNORECASE
)
_NEW_TOPIC = re.compile(rf"^\W*(?:{either(NEW_TOPIC)})\b", re.IGNORECASE)
_COUNTED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")


def route(message: str, files: Sequence[str] = (), before: Route | None = None) -> Route:
    """Return what a message with these files is about; a short follow-up stays with the one before."""
    text = _QUOTED.sub("", message[:READ])
    points = _points(text)
    if points >= ENOUGH or any(_is_source(name) for name in files):
        return "coding"
    if before == "coding" and points >= ENOUGH_ALREADY:
        return "coding"
    return before if before is not None and _follows(text) else "general"


def _is_source(name: str) -> bool:
    path = PurePath(name)
    return path.suffix.lstrip(".").lower() in _SOURCES or path.name in {"Dockerfile", "Makefile"}


@lru_cache(maxsize=512)  # of a long chat, again with every question
def _points(text: str) -> float:
    """Return how much a text looks like one about programs."""
    if _CERTAIN.search(text):
        return 2 * NAME
    plain = _ELSEWHERE.sub(" ", text)
    named = next((found for names in _NAMED if (found := names.search(plain))), None)
    prose = _PROSE.search(plain)
    if prose is not None and (named is None or prose.start() < named.end()):
        return 0.0
    signs = {match.lastindex for match in _SIGNS.finditer(text)}
    words = {match[0].lower() for match in _WORDS.finditer(plain)}
    return (NAME if named else 0.0) + SIGN * len(signs) + WORD * len(words)


def _follows(text: str) -> bool:
    """Tell whether a message can be read as one that goes on with what was said."""
    if _NEW_TOPIC.search(text) or _PROSE.search(text):
        return False
    words = len(_COUNTED.findall(text))
    return words <= SHORT or (words <= FOLLOWS_WITHIN and _REFERRING.search(text) is not None)
