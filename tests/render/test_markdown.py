"""Markdown for chats and tickets: what a node wrote is said, and does nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile import NASTY, reports
from hypothesis import HealthCheck, given, settings
from markdown_it import MarkdownIt
from sample_report import report

from triage.model import Command, Report
from triage.render import markdown

FLAT = {"inline", "text", "softbreak", "hardbreak", "code_inline", "strong_open", "strong_close", "fence"}
BLOCKS = {"heading_open", "heading_close", "paragraph_open", "paragraph_close", "bullet_list_open", "bullet_list_close",
          "list_item_open", "list_item_close"}  # fmt: skip


def tokens(document: str) -> list[tuple[str, str]]:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    found = []
    for token in parser.parse(document):
        found.append((token.type, token.content))
        found += [(inner.type, inner.content) for inner in token.children or ()]
    return found


def plain(text: str) -> str:
    """What a reader sees of one line."""
    inline = MarkdownIt("commonmark").enable(["strikethrough"]).parseInline(text)[0]
    return "".join(token.content for token in inline.children or ())


def test_verdict_and_step_come_first() -> None:
    lines = markdown.render(report()).splitlines()
    assert lines[0] == r"## job 4711: rank 5 \(gpu003\) is dead \(confidence high\)"
    assert lines[2].startswith("**Do this:** ")


def test_equal_nodes_are_folded() -> None:
    told = markdown.render(report(1024))
    assert "gpu[0001" in plain(told) or r"gpu\[001" in told
    assert len(told) < 8000


@given(of=reports())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_nothing_that_a_node_wrote_becomes_a_link_an_image_html_or_a_table(of: Report) -> None:
    told = markdown.render(of)
    assert all(sign.isprintable() or sign == "\n" for sign in told)
    kinds = {kind for kind, _ in tokens(told)}
    assert kinds <= FLAT | BLOCKS
    assert [c for k, c in tokens(told) if k == "fence"][: len(of.commands)] == [
        line[1] + "\n" for line in (markdown.fenced(command.run) for command in of.commands)
    ]


@pytest.mark.parametrize("nasty", NASTY)
def test_a_hostile_text_reads_as_it_was_cleaned(nasty: str) -> None:
    from triage.render.clean import clean

    assert plain(markdown.said("a " + nasty)) == clean("a " + nasty, 400)


@pytest.mark.parametrize("word", ["@here", "a@b.example", "https://x.example", "www.x.example"])
def test_words_that_a_site_would_turn_into_links_or_calls_stand_in_code(word: str) -> None:
    assert markdown.said(f"see {word}") == f"see `{word}`"


def test_a_command_with_backticks_stays_in_its_fence() -> None:
    run = "echo ```; reboot # ````"
    told = markdown.render(replace(report(), commands=(Command("look", run, "none", ""),)))
    assert ("fence", run + "\n") in tokens(told)
