"""The page of known bugs: the committed page is what the command makes."""

from triage.bugs import PAGE, make_page


def test_the_committed_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text() == make_page()
