import pathlib
import platform
import sys

from setuptools import Extension, find_packages, setup

HERE = pathlib.Path(__file__).parent
version = {}
exec((HERE / 'lzero_async' / 'version.py').read_text(encoding='utf-8'), version)

# Kernels in C, once for each kind of processor; which of them is used is decided when they are loaded. They are plain
# libraries that know nothing of Python. Where there is no compiler the package works without them.
KERNELS = 'lzero_async/lightzero/native'
FLAGS = ['-std=gnu11', '-O3', '-g0', '-pthread', '-fopenmp-simd', '-fno-math-errno', '-fno-trapping-math']
AVX2 = ['-mavx2', '-mfma']
AVX512 = [*AVX2, '-mavx512f', '-mavx512vl', '-mavx512bw', '-mavx512dq', '-mprefer-vector-width=512']


def kernels(name, processor):
    return Extension(
        f'{KERNELS.replace("/", ".")}.{name}',
        sources=sorted(str(path.relative_to(HERE)) for path in (HERE / KERNELS).glob('*.c')),
        depends=sorted(str(path.relative_to(HERE)) for path in (HERE / KERNELS).glob('*.h')),
        extra_compile_args=[*FLAGS, *processor],
        extra_link_args=['-pthread'],
        optional=True,
        py_limited_api=True,
    )


can_have_kernels = sys.platform == 'linux' and platform.machine() == 'x86_64'

setup(
    name='lzero-async',
    version=version['__version__'],
    description='Asynchronous training for LightZero: collect, train and evaluate at the same time, with bounded lag',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.8,<3.12',
    packages=find_packages(include=['lzero_async', 'lzero_async.*']),
    ext_modules=[kernels('_avx2', AVX2), kernels('_avx512', AVX512)] if can_have_kernels else [],
    package_data={
        'lzero_async': ['py.typed'],
        'lzero_async.lightzero.native': ['*.c', '*.h'],
        'lzero_async.priorzero.games': ['*.inf', '*.z5'],
    },
    install_requires=[
        'DI-engine>=0.5.3',
        'cloudpickle',
        'easydict',
        'lightzero==0.2.0',
        'numpy<2',
        'psutil',
        'pympler',
        'rich',
        'safetensors',
        'tensorboard',
        'torch>=2.1',
        # LightZero imports it. Left free, pip takes one so old that it does not say which protobuf it breaks with.
        'wandb>=0.16',
    ],
    extras_require={
        'ray': ['ray>=2.9'],
        'atari': ['opencv-python-headless'],
        'priorzero': [
            'accelerate',
            'gguf',
            'jericho',
            'peft',
            'tokenizers',
            'transformers>=4.56,<5',
        ],
        'dev': ['hypothesis', 'mypy', 'pytest', 'pytest-timeout', 'ruff'],
    },
    entry_points={
        'console_scripts': [
            'lzero-async = lzero_async.entry.cli:main',
            'priorzero_entry = lzero_async.entry.priorzero_entry:main',
        ],
    },
    classifiers=[
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
