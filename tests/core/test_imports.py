"""The schedule stands on the standard library alone, and importing the package starts nothing heavy."""
import ast
import pathlib
import subprocess
import sys

import pytest

import lzero_async

PACKAGE = pathlib.Path(lzero_async.__file__).parent
CORE = sorted((PACKAGE / 'core').glob('**/*.py'))


def imported(path):
    """Yield (module, level) for every import in the file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            yield node.module or '', node.level


@pytest.mark.skipif(not hasattr(sys, 'stdlib_module_names'), reason='the list came with Python 3.10')
@pytest.mark.parametrize('path', CORE, ids=[path.name for path in CORE])
def test_core_imports_the_standard_library_and_itself(path):
    siblings = {other.stem for other in CORE}
    for module, level in imported(path):
        if level:
            assert level == 1 and module in siblings, f'{path.name} imports {"." * level}{module}'
        else:
            assert module.split('.')[0] in sys.stdlib_module_names, f'{path.name} imports {module}'


def test_core_was_found():
    assert {'coordinator.py', 'trainer.py', 'param_sync.py'} <= {path.name for path in CORE}


def test_importing_the_package_imports_neither_torch_nor_lightzero():
    program = 'import sys, lzero_async; print(sorted({"torch", "lzero", "ding"} & set(sys.modules)))'
    done = subprocess.run(
        [sys.executable, '-c', program], cwd=PACKAGE.parent, timeout=60, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == '[]'
