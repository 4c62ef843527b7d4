"""Hostile text: no pattern takes time that grows with the square of its input, and every reader
opens files by one guard.

What might hang is tried in a child process whose processor time has a limit, which no load of
the machine changes.
"""

import ast
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import nearest
from fedsim.common.files import parse_toml
from tests.children import limit_cpu_from_now
from tests.test_source import ROOT, SOURCES, tree_of

PATTERN_CALLS = {"compile", "match", "fullmatch", "search", "sub", "findall", "finditer", "split"}
SEARCHING = {"search", "sub", "findall", "finditer", "split"}
# a square of so many steps is many seconds of work; what is linear takes a millisecond
LENGTH = 100_000
# for all texts of a pattern, which take a tenth of a second; a quadratic pattern takes minutes
MOST_CPU_S = 10
USUAL = "0aAeE_.-+/: \t\n\x00é"


class Pattern:
    """A pattern of the source: where it is used, its text and flags, and whether it is sought at
    every place.
    """

    def __init__(self, place: str, text: str, flags: int, uses: set[str]) -> None:
        self.place = place
        self.text = text
        self.flags = flags
        self.uses = uses


def patterns() -> list[Pattern]:
    return [pattern for path in SOURCES for pattern in _patterns_of(path)]


def _patterns_of(path: Path) -> Iterator[Pattern]:
    tree, name = tree_of(path), path.relative_to(ROOT).as_posix()
    constants = _texts(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if (
            isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in PATTERN_CALLS
        ):
            text = _text_of(node.args[0], constants)
            assert text is not None, (
                f"{name}:{node.lineno}: the pattern is no text that can be read here"
            )
            flags = sum(
                int(getattr(re, word)) for word in re.findall(r"re\.([A-Z]+)\b", ast.unparse(node))
            )
            uses = {node.func.attr} if node.func.attr != "compile" else _uses_of(tree, node)
            yield Pattern(f"{name}:{node.lineno}", text, flags, uses)


def _texts(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _text_of(node.value, found)
            if text is not None:
                found[node.targets[0].id] = text
    return found


def _text_of(node: ast.expr, constants: dict[str, str]) -> str | None:
    """The text of a literal, or of an f-string whose parts are constants of the module; what is
    not known becomes ``x``.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else constants.get(ast.unparse(part)[1:-1])
            for part in node.values
        ]
        return "".join("x" if part is None else str(part) for part in parts)
    return None


def _uses_of(tree: ast.Module, compiled: ast.Call) -> set[str]:
    """The methods by which a module uses a compiled pattern; all of them where that cannot be
    seen.
    """
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and node.value is compiled
            and isinstance(node.targets[0], ast.Name)
        ):
            used = re.findall(rf"\b{node.targets[0].id}\.(\w+)\(", ast.unparse(tree))
            return {*used} or SEARCHING
    return SEARCHING


def hostile(pattern: Pattern) -> Iterator[str]:
    """One character many times, and near-misses: texts that match, of which some piece is
    repeated and the end is spoiled.
    """
    for character in sorted({*USUAL, *pattern.text}):
        yield character * LENGTH
    examples = _examples(pattern)
    if pattern.uses & SEARCHING:  # each beginning may be followed to the end of the text
        yield from (examples[0][:end] * (6 * LENGTH // end) for end in range(1, len(examples[0])))
    for example in examples:
        for start in range(len(example)):
            for end in {start + 1, len(example) - 1}:
                if start < end <= len(example):
                    piece = example[start:end]
                    repeated = piece * (LENGTH // len(piece))
                    yield example[:start] + repeated + "\x00"
                    yield example[:start] + repeated + example[end:-1]


def _examples(pattern: Pattern) -> list[str]:
    """Short texts that the pattern matches, drawn from its own syntax tree."""
    import warnings

    with warnings.catch_warnings(action="ignore"):
        import sre_parse
    tree = sre_parse.parse(pattern.text, pattern.flags)
    return list(dict.fromkeys(_example(tree, turn) for turn in range(4)))


def _example(tree: Any, turn: int) -> str:
    made = ""
    for code, value in tree:
        match str(code):
            case "LITERAL":
                made += chr(value)
            case "NOT_LITERAL" | "ANY":
                made += "ab1 "[turn]
            case "IN":
                made += _member(value, turn)
            case "BRANCH":
                made += _example(value[1][turn % len(value[1])], turn)
            case "SUBPATTERN":
                made += _example(value[3], turn)
            case "ATOMIC_GROUP":
                made += _example(value, turn)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = value
                made += _example(inner, turn) * max(int(least), min(int(most), 1 + turn % 2))
            case "AT" | "ASSERT" | "ASSERT_NOT" | "GROUPREF":
                pass
            case other:
                raise AssertionError(f"a part of patterns that this test does not know: {other}")
    return made


def _member(value: Any, turn: int) -> str:
    if str(value[0][0]) == "NEGATE":
        matched = {chr(item) for code, item in value if str(code) == "LITERAL"}
        return next(character for character in "ab1 xyz"[turn:] if character not in matched)
    code, item = value[turn % len(value)]
    if str(code) == "RANGE":
        return chr(item[0])
    return (
        chr(item)
        if str(code) == "LITERAL"
        else {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}.get(str(item), "a")
    )


def try_out(tried: list[Pattern], most_cpu_s: int = MOST_CPU_S) -> None:
    """Give each pattern its hostile texts; prints each pattern before, and at the end how many
    texts there were.
    """
    count = 0
    for pattern in tried:
        print(f"{pattern.place}: {pattern.text}", flush=True)
        limit_cpu_from_now(most_cpu_s)
        made = re.compile(pattern.text, pattern.flags)
        for text in hostile(pattern):
            count += 1
            for use in sorted(pattern.uses):
                arguments = ("-", text) if use == "sub" else (text,)
                getattr(made, use)(*arguments)
    limit_cpu_from_now(10 * MOST_CPU_S)  # the end of the process is no pattern's
    print(count)


def tried_in_a_child(patterns_to_try: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from tests.test_hostile_text import Pattern, patterns, try_out; "
        f"try_out({patterns_to_try})"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("share", range(3))
def test_no_pattern_takes_quadratic_time(share: int) -> None:
    """Every third pattern, in a process of its own."""
    told = tried_in_a_child(f"patterns()[{share}::3]")
    *before, last = told.stdout.splitlines() or [""]
    assert told.returncode == 0, f"{last}\n{told.stderr[-2000:]}"
    assert len(before) > 8
    assert int(last) > 1_000


def test_a_quadratic_pattern_would_be_seen() -> None:
    told = tried_in_a_child("[Pattern('control', r'(\\d+) Bytes', 0, {'search'})], 2")
    assert told.returncode == -signal.SIGXCPU, told.stderr


@pytest.mark.parametrize(
    "text",
    [
        "a." * 20_000 + "a = 1",
        "[" + "a." * 20_000 + "a]",
        'b = {"x,." . ' + "a." * 20_000 + "a = 1}",
        '"."' + ".','" * 20_000 + "= 1",
    ],
    ids=["key", "header", "inline", "quoted"],
)
def test_dotted_keys_without_end(text: str) -> None:
    with pytest.raises(ValueError, match=r"parts; allowed are at most|Expected|Invalid"):
        parse_toml(text)


def test_dots_that_are_no_keys() -> None:
    numbers = ", ".join(["0.5"] * 500)
    text = f'# {"." * 500}\na = [{numbers}]\nb = \'{"." * 500}\'\nc = "{"." * 300}\\"{"." * 300}"\n'
    assert parse_toml(text)["a"] == [0.5] * 500


def test_long_names_are_not_compared() -> None:
    assert nearest("x" * 1_000_000, ["x" * 1_000_000 + "y", "fedavg"]) == ""
    assert nearest("fedavq", ["x" * 1_000_000, "fedavg"]) == " (did you mean 'fedavg'?)"


GUARDS = {"regular", "read_bytes", "read_text", "open_file", "read_json", "read_toml"}
OPENERS = {
    *(
        "open",
        "read_text",
        "read_bytes",
        "fromfile",
        "load_file",
        "safe_open",
        "imread",
        "loadtxt",
        "genfromtxt",
        "memmap",
    ),
    *(
        "ParquetFile",
        "read_table",
        "read_metadata",
        "read_schema",
        "read_parquet",
        "read_csv",
        "open_file",
        "is_zipfile",
        "ZipFile",
    ),
}
NOT_BY_A_PATH = {
    "packaged.read_text(encoding='utf-8')": "a file of the package",
    "np.loadtxt(lines, delimiter=',', dtype=np.uint8)": "lines of a file that is open",
    "(out / EVENTS).open('w', buffering=1)": "writes",
    "beside.open('wb')": "writes",
    "beside.open('w', encoding='utf-8')": "writes",
    "os.open(os.devnull, os.O_WRONLY)": "writes",
    "open(os.devnull, 'wb')": "writes",
    "os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 438)": "locks; opened for both, a pipe is not waited for",
    "_openers[executor].open(parcel, shared)": "a parcel of a worker",
    "self.open(*self._fetch([reference]))": "a parcel of a worker",
    "(folder / 'summary.json').read_text()": "of runs that the contract has just made",
    "(one / 'summary.json').read_text()": "of runs that the contract has just made",
    "(other / 'summary.json').read_text()": "of runs that the contract has just made",
    "(one / name).read_bytes()": "of runs that the contract has just made",
    "(other / name).read_bytes()": "of runs that the contract has just made",
    "file.read_text(encoding='utf-8')": "a file of the package",
    "self._file.open('a', encoding='utf-8')": "writes",
    "file.open('w', encoding='utf-8', buffering=1)": "writes",
    "os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)": "a device of the kernel",
    "self.log(name).open('wb')": "writes",
    "self.log(name).read_text(errors='replace')": "of a process that the rehearsal has started",
    "stat.read_text()": "a file of the kernel",
    "path.open('wb')": "writes",
    "path.open('ab')": "writes",
    "Image.open(io.BytesIO(data))": "bytes that a guard has read, or of a table",
    "entries.open(member.source)": "a member of an archive that is open",
    "opener.open(request, timeout=_PATIENCE_S)": "an address of the web",
    "self._part.open('ab' if begin else 'wb')": "writes",
    "target.open('wb')": "writes",
}
"""Calls of such names that open no path of a user's for reading, and why."""


def unguarded(tree: ast.Module) -> list[str]:
    """Calls that open a path which no guard has seen: the path is no call of a guard, and
    nothing writes.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            written = ast.unparse(node)
            is_load = written.startswith("np.load(")
            is_guard = isinstance(node.func, ast.Name) and name in GUARDS
            if (name in OPENERS or is_load) and not is_guard and "regular(" not in written:
                found.append(written)
    return found


def test_no_reader_opens_a_path_by_itself() -> None:
    calls = {
        call: path.name
        for path in SOURCES
        if path.name != "files.py"
        for call in unguarded(tree_of(path))
    }
    others = {call: name for call, name in calls.items() if call not in NOT_BY_A_PATH}
    assert others == {}


def test_a_reader_by_itself_would_be_seen() -> None:
    alone = [
        "path.read_text()",
        "open(path)",
        "pd.read_csv(path)",
        "np.load(path)",
        "pq.ParquetFile(path)",
        "path.open('rb')",
    ]
    assert all(unguarded(ast.parse(source)) for source in alone)
    assert not unguarded(ast.parse("np.load(regular(path)); read_text(path); open_file(path)"))
