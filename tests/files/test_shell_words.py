"""Shell text as commands and words."""

from __future__ import annotations

import pytest

from xla2tpu.files.shell import Command, Unreadable, commands, empties_block


def words(text: str, **how: bool) -> list[list[str]]:
    found, _ = commands(text, **how)
    return [[w.value for w in c.words] for c in found]


def parsed(text: str) -> list[Command]:
    return commands(text)[0]


def test_words_and_quotes() -> None:
    assert words("a 'b c' \"d $E\" f\\ g h'i'j\n") == [["a", "b c", "d $E", "f g", "hij"]]


def test_operators_part_commands() -> None:
    found = parsed("a && b || c; d | e\nf &")
    assert [c.words[0].value for c in found] == ["a", "b", "c", "d", "e", "f"]
    assert [(c.before, c.after) for c in found] == [
        ("\n", "&&"), ("&&", "||"), ("||", ";"), (";", "|"), ("|", "\n"), ("\n", "&"),
    ]  # fmt: skip


def test_comments_and_continued_lines() -> None:
    assert words("a b \\\n  c # d\n# e\nf#g\n") == [["a", "b", "c"], ["f#g"]]


def test_docker_has_comments_in_continued_lines() -> None:
    assert words("a \\\n  # b\n  c\n", docker=True) == [["a", "c"]]
    assert words("a \\\n  # b\n  c\n") == [["a"], ["c"]]


def test_folded_lines_are_one() -> None:
    assert words("pip install\n  x\n", folded=True) == [["pip", "install", "x"]]


def test_here_documents_are_no_commands() -> None:
    text = "cat <<EOF > f\npip install x\nEOF\nls\n"
    found, bodies = commands(text)
    assert [c.words[0].value for c in found] == ["cat", "ls"]
    assert [text[a:b] for a, b, _ in bodies] == ["pip install x\n"]


def test_redirections_are_no_words() -> None:
    assert words("a > b 2>&1 < c d\n") == [["a", "d"]]


def test_versions_are_no_redirections() -> None:
    assert words("pip install torch>=2.0 x<=3") == [["pip", "install", "torch>=2.0", "x<=3"]]


def test_expansions_stay_together() -> None:
    assert words('a $(b "c d") ${E:-f g} `h i`') == [["a", '$(b "c d")', "${E:-f g}", "`h i`"]]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b", "a <<E\nb\n", "a `b"])
def test_what_does_not_close(text: str) -> None:
    with pytest.raises(Unreadable):
        commands(text)


def test_places_of_words() -> None:
    text = "x=1 pip 'a b'\n"
    (command,) = parsed(text)
    assert [text[w.start : w.end] for w in command.words] == ["x=1", "pip", "'a b'"]
    assert (command.start, command.end) == (0, 13)


def test_blocks_that_would_be_empty() -> None:
    found = parsed("if a; then b; fi\nwhile c\ndo\n  d\n  e\ndone\n")
    assert [empties_block(found, i) for i in range(len(found))].count(True) == 1
    assert empties_block(found, 1)
