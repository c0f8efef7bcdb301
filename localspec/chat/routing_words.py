"""The words that messages are routed by; entries are parted by commas, and may be regular expressions."""

from __future__ import annotations

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
