"""What a person sees: one live table in a terminal, a line now and then elsewhere, and a table at the end."""
from __future__ import annotations

import contextlib
from typing import Dict, Iterator, Optional, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ..core.protocols import Evaluation
from .report import RunReport


class TerminalView:
    """Writes to the stream it is given, not to sys.stdout, which the host's noise is kept from during a run."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._live: Optional[Live] = None

    @property
    def is_live(self) -> bool:
        return self._console.is_terminal

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep a live table on screen for a while, where there is a screen."""
        if not self.is_live:
            yield
            return
        # Live would take over sys.stdout, and with it the host's noise that is kept from the terminal.
        with Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as self._live:
            yield
        self._live = None

    def update(self, report: RunReport) -> None:
        if self._live is not None:
            self._live.update(progress_table(report), refresh=True)
        else:
            self._console.print(progress_line(report), highlight=False, markup=False, soft_wrap=True)

    def finish(self, report: RunReport) -> None:
        self._console.print(final_table(report))


def progress_line(report: RunReport) -> str:
    last = report.last_round
    return (
        f'[{report.activity.elapsed:6.1f}s] round {report.statistics["train_count"]}, env steps {report.env_steps}, '
        f'updates {report.updates}, lag {report.statistics["collect_train_lag"]}/'
        f'{report.statistics["off_policy_degree"]}, staleness {last.staleness if last else 0}, '
        f'overlap {report.activity.overlap_ratio:.0%}, reward {_reward(report.last_evaluation)}{_on_policy(report)}'
    )


def progress_table(report: RunReport) -> Table:
    table = Table(title=f'lzero-async, {report.exp_name}', title_justify='left', show_header=False)
    statistics, activity = report.statistics, report.activity
    for role, kind in (('collector', 'collect'), ('learner', 'train'), ('evaluator', 'eval')):
        table.add_row(
            role, f'{statistics[kind + "_count"]} done', f'{1 - activity.idle_ratio(kind):4.0%} busy',
            f'{statistics[kind + "_avg_time"]:.2f} s each',
        )
    table.add_row('progress', f'{report.env_steps} env steps', f'{report.updates} updates', f'{activity.elapsed:.0f} s')
    table.add_row(
        'off-policy', f'lag {statistics["collect_train_lag"]} of {statistics["off_policy_degree"]}',
        f'staleness {report.mean_staleness:.2f} mean, {report.max_staleness} max',
        f'{activity.overlap_ratio:.0%} overlap',
    )
    table.add_row(
        'reward', _reward(report.last_evaluation), f'best {_reward(report.best_evaluation)}', _on_policy(report)[2:]
    )
    return table


def final_table(report: RunReport) -> Table:
    table = Table(title='lzero-async', title_justify='left', show_header=False)
    table.add_column()
    table.add_column(overflow='fold')  # a path that is cut short cannot be copied
    rows = {
        'ended by': report.ended_by or 'still running',
        'mode': f'{report.statistics["mode"]}, off_policy_degree {report.statistics["off_policy_degree"]}',
        'wall time': f'{report.activity.elapsed:.1f} s',
        'env steps': f'{report.env_steps} ({report.env_steps_per_s:.1f} per s)',
        'updates': f'{report.updates} ({report.updates_per_s:.1f} per s)',
        'rounds': str(report.statistics['train_count']),
        'collect and train at the same time': f'{report.activity.overlap_ratio:.0%} of the time',
        'lag': f'mean {report.mean_lag:.2f}, max {report.statistics["max_lag"]} rounds',
        'staleness': f'mean {report.mean_staleness:.2f}, max {report.max_staleness} rounds',
        'samples': _samples(report),
        **_background(report),
        'evaluation reward': f'last {_reward(report.last_evaluation)}, best {_reward(report.best_evaluation)}',
        'checkpoints': f'{report.exp_name}/ckpt',
        'TensorBoard and logs': f'{report.exp_name}/log',
        'summary': f'{report.exp_name}/async_summary.json',
    }
    rows.update(_workers(report))
    if report.error:
        rows['error'] = report.error
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _on_policy(report: RunReport) -> str:
    """How full a strictly on-policy round is, where there are such rounds."""
    numbers = report.statistics
    if 'sync_batch_size' not in numbers:
        return ''
    return f', on-policy round {numbers["samples_collected_this_round"]}/{numbers["sync_batch_size"]} samples'


def _workers(report: RunReport) -> Dict[str, str]:
    numbers = report.statistics
    rows: Dict[str, str] = {}
    if 'collector_engine' in numbers:
        rows['engine'] = (
            f'{numbers["collector_engine"]}, {numbers["num_collectors"]} collector(s); evaluator: '
            f'{numbers["evaluator_engine"]}'
        )
    if numbers.get('time_to_first_batch') is not None:
        rows['first batch'] = f'{numbers["time_to_first_batch"]:.1f} s after the call'
    if numbers.get('worker_restarts'):
        rows['workers replaced'] = str(numbers['worker_restarts'])
    return rows


def _samples(report: RunReport) -> str:
    numbers = report.statistics
    return (
        f'{numbers.get("processed_samples", 0)} trained on, {numbers.get("avg_sample_age", 0.0):.1f} s old on average, '
        f'{numbers.get("dropped_samples", 0)} dropped'
    )


def _background(report: RunReport) -> Dict[str, str]:
    numbers = report.statistics
    if 'background_reanalyzed_segments' not in numbers:
        return {}
    return {
        'reanalyzed in the background':
            f'{numbers["background_reanalyzed_segments"]} segments in {numbers["background_reanalyze_time"]:.1f} s'
    }


def _reward(evaluation: Optional[Evaluation]) -> str:
    if evaluation is None:
        return 'none yet'
    return f'{evaluation.reward_mean:.1f} (policy_version {evaluation.policy_version})'
