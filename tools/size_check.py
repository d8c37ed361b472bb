"""Check house rules that no linter knows: the size of functions and files, and code that the package may not hold.

    python tools/size_check.py [ROOT]

Prints `path:line: what is wrong` and exits 1 if there is anything. There is no list of exceptions: divide what is too
long.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 400
FOLDERS = ("src", "native", "tests", "benchmarks", "tools", "examples")
PACKAGE = "src"
ENVIRONMENT_READER = Path("src/samovar/launch")
BARRED_FILE_NAMES = {"utils.py", "common.py"}
BARRED_MODULES = {"pickle", "_pickle", "marshal", "cloudpickle", "dill", "joblib", "shelve"}
BARRED_CALLS = {"eval", "exec", "torch.load"}
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb"}
STRATEGIES = Path("src/samovar/strategies")
_DECLARED = re.compile(r'^@strategy\(\s*"([^"]+)"', re.MULTILINE)
SKIPPED_FOLDERS = {"__pycache__", "build", "out"}

Finding = tuple[int, str]


def check(root: Path) -> list[str]:
    """All findings under `root`, as `path:line: sentence`."""
    found = []
    strategies = _strategies(root)
    for path in _files(root):
        relative = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        findings = sorted(_findings(relative, lines, strategies))
        found += [f"{relative}:{line}: {sentence}" for line, sentence in findings]
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            names = path.relative_to(root).parts[1:-1]
            hidden = any(name in SKIPPED_FOLDERS or name.startswith(".") for name in names)
            if path.suffix in (".py", ".cpp", ".hpp") and not hidden and path.is_file():
                yield path


def _strategies(root: Path) -> set[str]:
    """The names that strategies declare."""
    files = (root / STRATEGIES).glob("*.py")
    return {name for path in files for name in _DECLARED.findall(path.read_text(encoding="utf-8"))}


def _findings(path: Path, lines: list[str], strategies: set[str]) -> Iterator[Finding]:
    if len(lines) > MAX_FILE_LINES:
        yield 1, f"{len(lines)} lines; a file has at most {MAX_FILE_LINES}: divide it"
    if path.name in BARRED_FILE_NAMES:
        yield 1, "a file is named for what it knows, not utils or common"
    if path.suffix != ".py":
        yield from _too_long(cpp_functions(lines))
        return
    try:
        tree = ast.parse("\n".join(lines) + "\n")
    except SyntaxError as error:
        yield error.lineno or 1, f"is no Python: {error.msg}"
        return
    yield from _too_long(_python_functions(tree))
    if path.parts[0] == PACKAGE:
        yield from _late_imports(tree)
        yield from _barred(tree)
        yield from _name_tests(tree, strategies)
        if ENVIRONMENT_READER not in path.parents:
            yield from _environment_reads(tree)


def _too_long(functions: Iterator[tuple[str, int, int]]) -> Iterator[Finding]:
    for name, first, last in functions:
        length = last - first + 1
        if length > MAX_FUNCTION_LINES:
            yield first, f"{name} has {length} lines; a function has at most {MAX_FUNCTION_LINES}: divide it"


def _python_functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def _late_imports(tree: ast.AST) -> Iterator[Finding]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {node for function in functions for node in ast.walk(function)}
    for node in inside:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, "import inside a function; move it to the top of the file, where a reader sees it"


def _barred(tree: ast.AST) -> Iterator[Finding]:
    names = _imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in _modules(node):
                if module.split(".")[0] in BARRED_MODULES:
                    yield node.lineno, f"{module} can run code from a file; use safetensors and JSON"
        elif isinstance(node, ast.Call):
            called = _dotted(node.func, names)
            if called in BARRED_CALLS and not _takes_weights_only(called, node):
                yield node.lineno, f"{called}() can run code from a file; use safetensors and JSON"
            if any(_allows_pickle(keyword) for keyword in node.keywords):
                yield node.lineno, "allow_pickle=True can run code from a file; use safetensors and JSON"


def _name_tests(tree: ast.AST, strategies: set[str]) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            named = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in strategies]
            if named:
                yield node.lineno, f"tests for {named[0]!r}; ask the strategy's traits instead"


def _takes_weights_only(called: str, node: ast.Call) -> bool:
    """Whether it is torch.load(..., weights_only=True), which makes tensors and plain containers, and calls nothing."""
    values = [keyword.value for keyword in node.keywords if keyword.arg == "weights_only"]
    return called == "torch.load" and any(isinstance(v, ast.Constant) and v.value is True for v in values)


def _environment_reads(tree: ast.AST) -> Iterator[Finding]:
    names = _imported_names(tree)
    barred = {f"os.{name}" for name in ENVIRONMENT_NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and _dotted(node, names) in barred:
            yield node.lineno, f"reads the environment; only {ENVIRONMENT_READER} may, and passes it on"


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Each local name with its full name: `import torch as t` gives t: torch."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if node.module and node.level == 0 else []


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`torch.load` for that expression, through import aliases; "" for anything except names and dots."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _allows_pickle(keyword: ast.keyword) -> bool:
    value = keyword.value
    return keyword.arg == "allow_pickle" and not (isinstance(value, ast.Constant) and value.value is False)


_NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.DOTALL
)
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_DECORATION = re.compile(r"\b(?:alignas|__attribute__)\s*\(+[^()]*\)+|\b(?:public|private|protected)\s*:(?!:)")
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b[^;{}()]*$")
_NAME = re.compile(r"([\w:~]+|operator\S+)\s*\(")


def cpp_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of each function: an outermost brace block whose head has parentheses."""
    code = "\n".join(lines)
    for pattern in (_NOT_CODE, _PREPROCESSOR, _DECORATION):
        code = pattern.sub(_blank, code)
    depth, head_start = 0, 0
    for position, sign in enumerate(code):
        head = code[head_start:position] if depth == 0 else ""
        if sign == "{" and not _SCOPE.search(head):
            depth += 1
        elif sign == "}" and depth > 0:
            depth -= 1
            # `a{1}, b{2} {` are still the head of a constructor.
            if depth == 0 and code[position + 1 :].lstrip()[:1] not in (",", "{"):
                yield from _function(code, head_start, position)
                head_start = position + 1
        elif depth == 0 and sign in ";{}":
            head_start = position + 1


def _function(code: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    block = code[start:end]
    name = _NAME.search(block[: block.index("{")])
    if name:
        yield name[1], _line(code, end - len(block.lstrip())), _line(code, end)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _line(code: str, position: int) -> int:
    return code.count("\n", 0, position) + 1


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    found = check(root)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
