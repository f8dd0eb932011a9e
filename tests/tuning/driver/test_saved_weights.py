from pathlib import Path

from helpers.making import make_record, make_run

from tune_speed.core.comparability import fastest
from tune_speed.core.records import Status
from tune_speed.tuning.driver.trial_files import BestWeights, weights_file


def leave(kept: BestWeights, trial_id: str) -> None:
    Path(kept.plan(trial_id).file).write_bytes(b"weights")


def there(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "weights").iterdir())


def test_only_the_fastest_trials_weights_remain(tmp_path: Path) -> None:
    kept = BestWeights(tmp_path, [])
    for trial_id, time_s in (("t0000", 3.0), ("t0001", 2.0), ("t0002", 2.5)):
        leave(kept, trial_id)
        kept.finished(make_record(trial_id, time_s=time_s))
    assert there(tmp_path) == ["t0001"]


def test_a_trial_knows_the_time_to_beat(tmp_path: Path) -> None:
    kept = BestWeights(tmp_path, [])
    assert kept.plan("t0000").at_most_s is None
    kept.finished(make_record("t0000", time_s=3.0))
    kept.finished(make_record("t0001", Status.MISSED))
    assert kept.plan("t0002").at_most_s == 3.0
    assert Path(kept.plan("t0002").file) == weights_file(tmp_path, "t0002")


def test_of_equal_times_the_more_accurate_trial_is_kept(tmp_path: Path) -> None:
    scores = {"t0000": 0.91, "t0001": 0.93, "t0002": 0.93}
    records = [make_record(i, runs=(make_run(accuracy=a),)) for i, a in scores.items()]
    assert fastest(reversed(records)) is records[1]
    assert fastest([make_record(status=Status.MISSED)]) is None


def test_a_resumed_search_takes_over_what_is_there(tmp_path: Path) -> None:
    first = BestWeights(tmp_path, [])
    for trial_id in ("t0000", "t0001", "t0002"):  # As a killed driver leaves them.
        leave(first, trial_id)
    again = BestWeights(tmp_path, [make_record("t0000"), make_record("t0001", time_s=0.5)])
    assert there(tmp_path) == ["t0001"]
    assert again.plan("t0003").at_most_s == 0.5


def test_a_study_whose_folder_takes_nothing_goes_on(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file in the way")
    kept = BestWeights(tmp_path, [])
    kept.finished(make_record("t0000"))
    kept.finished(make_record("t0001", time_s=0.5))
    assert kept.plan("t0002").at_most_s == 0.5
