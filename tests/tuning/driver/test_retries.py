from tune_speed.tuning.driver.trials import MOST_BLAMELESS, Attempts


def test_trial_is_begun_so_often_and_no_more() -> None:
    attempts = Attempts(3)
    answers = [attempts.died(saved_step=None, is_blameless=False) for _ in range(3)]
    assert answers == [True, True, False]


def test_what_gets_further_each_time_may_go_on() -> None:
    attempts = Attempts(2)
    for step in range(1, 20):
        assert attempts.died(saved_step=step, is_blameless=False)
    assert not attempts.died(saved_step=19, is_blameless=False)


def test_deaths_that_others_are_to_blame_for_are_not_counted_but_bounded() -> None:
    attempts = Attempts(1)
    for _ in range(MOST_BLAMELESS):
        assert attempts.died(saved_step=None, is_blameless=True)
    assert not attempts.died(saved_step=None, is_blameless=True)
