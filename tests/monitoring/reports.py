"""Reports for tests: one of a run that has just begun, one of a run that is over. Numbers are easy to divide."""
from lzero_async.core.activity import Activity
from lzero_async.core.protocols import Evaluation, RoundRecord
from lzero_async.core.statistics import Statistics
from lzero_async.monitoring.report import RunReport


def statistics(**numbers):
    counts = {f'{kind}_count': 0 for kind in ('collect', 'train', 'eval')}
    times = {f'{kind}_{what}_time': 0.0 for kind in ('collect', 'train', 'eval') for what in ('avg', 'total', 'wait')}
    return Statistics({
        **counts, **times, 'collect_train_lag': 0, 'max_lag': 0, 'mode': 'asynchronous', 'off_policy_degree': 4,
        'overlap_time': 0.0, 'collects_in_flight': 0, **numbers,
    })


def activity(elapsed=0.0, overlap=0.0, collect=0.0, train=0.0, evaluate=0.0):
    return Activity(elapsed, {'collect': collect, 'train': train, 'eval': evaluate}, overlap)


BEGINNING = activity(10.0)


def record(round=1, env_step=80, train_iter=20, activity=BEGINNING, **changes):
    fields = {
        'round': round, 'train_iter': train_iter, 'env_step': env_step, 'updates': 20, 'policy_version': train_iter,
        'staleness': 1, 'sample_age': 0.5, 'lag': 2, 'queue_size': 1, 'off_policy_degree': 4, 'activity': activity,
    }
    return RoundRecord(**{**fields, **changes})


def running_report():
    return RunReport('exp', None, None, None, statistics(), activity(), 0.0, 0, 0, None, None)


def finished_report(error=None):
    return RunReport(
        exp_name='exp', ended_by='failure' if error else 'max_env_step', error=error, last_round=record(),
        statistics=statistics(collect_count=20, train_count=20, max_lag=3, mean_staleness=0.75, max_staleness=2),
        activity=activity(100.0, 25.0, 60.0, 65.0, 5.0), mean_lag=1.5,
        env_steps=2000, updates=400,
        last_evaluation=Evaluation(380, 1900, 30.0, False, False),
        best_evaluation=Evaluation(200, 1000, 42.0, True, False),
    )
