"""How far a run is, in words."""

from vitcli.report.runs import RunProgress


def test_a_run_that_never_took_a_step_says_so():
    assert RunProgress(0, None).text == "not started"
    assert RunProgress(0, 1500).text == "no step of 1,500 yet"
    assert RunProgress(1, 1500).text == "step 1 of 1,500"
