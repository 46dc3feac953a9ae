"""The examples in the documents run as they stand there."""
import pathlib
import re

import pytest
from small_configs import cartpole

DOCS = pathlib.Path(__file__).parent.parent.parent / 'docs'


def python_blocks(name):
    return re.findall(r'```python\n(.*?)```', (DOCS / name).read_text(), re.DOTALL)


@pytest.mark.parametrize('name', ['staleness.md', 'synchronizer.md'])
def test_example(name):
    blocks = python_blocks(name)
    assert blocks
    for block in blocks:
        exec(compile(block, name, 'exec'), {})


def test_the_short_example_is_short():
    assert len(python_blocks('synchronizer.md')[0].splitlines()) <= 11


def test_extending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main_config, create_config = cartpole('run', off_policy_degree=2)
    names = {'main_config': main_config, 'create_config': create_config}
    (block,) = python_blocks('extending.md')
    exec(compile(block, 'extending.md', 'exec'), names)
    assert names['result'].ended_by == 'max_env_step'
    assert names['CountingLearner'].losses and names['reports']
