"""`fdmath claims`: what it prints, its exit codes, its JSON, and the stored report."""

import json
from dataclasses import replace

import pytest

from fdmath.claims import command, report
from fdmath.claims.claim import Observed
from fdmath.claims.command import main
from fdmath.claims.report import Outcome, Report, store, stored
from fdmath.claims.rows import ledger


def expecting(monkeypatch, name, verdict):
    """The command with one row of the ledger expecting another verdict."""
    rows = [replace(claim, verdict=verdict) if claim.id == name else claim for claim in ledger()]
    monkeypatch.setattr(command, "ledger", lambda: rows)


def checking(monkeypatch, name, check):
    """The command with another check for one row."""
    real = report.checks()
    monkeypatch.setattr(report, "checks", lambda: real | {name: check})


def test_a_claim_as_expected_is_code_0(capsys):
    assert main(["--id", "A24,A13"]) == 0
    said = capsys.readouterr().out
    assert "1.52 %" in said and "pair:reduction_of_traffic" in said and "all as the ledger says" in said
    assert said.index("A13  document A") < said.index("A24  document A")


@pytest.mark.parametrize("verdict", ["holds", "conditional"])
def test_a_disagreement_is_code_1(monkeypatch, capsys, verdict):
    expecting(monkeypatch, "A24", verdict)
    assert main(["--id", "A24"]) == 1
    assert "not as the ledger says: A24" in capsys.readouterr().out


def test_a_claim_that_holds_where_it_should_not_is_code_1(monkeypatch):
    checking(monkeypatch, "A24", lambda: Observed(inside=[True]))
    assert main(["--id", "A24"]) == 1


def test_a_check_that_raises_is_code_2_and_the_rest_runs(monkeypatch, capsys):
    checking(monkeypatch, "A24", lambda: 1 / 0)
    assert main(["--id", "A24,A26"]) == 2
    said = capsys.readouterr().out
    assert "ZeroDivisionError" in said and "1 refuted, 1 error" in said


def test_a_disagreement_beside_an_error_is_code_1(monkeypatch):
    checking(monkeypatch, "A24", lambda: 1 / 0)
    expecting(monkeypatch, "A26", "holds")
    assert main(["--id", "A24,A26"]) == 1


@pytest.mark.parametrize("words", [["--id", "A99"], ["--id", ""], ["--id", ","], ["--id", "A24", "--document", "B"]])
def test_no_such_claim_is_code_2(words, capsys):
    assert main(words) == 2 and "could not run" in capsys.readouterr().err


def test_an_unknown_claim_is_told_which_there_are(capsys):
    main(["--id", "A24,A99"])
    assert capsys.readouterr().err == "could not run: no claim A99; there are A01 to A79 and B01 to B95\n"


def test_small_letters_and_a_comma_too_many_do_no_harm(capsys):
    assert main(["--id", " a24, "]) == 0 and "1 claim: 1 refuted" in capsys.readouterr().out


def test_an_unknown_verdict_is_code_2():
    with pytest.raises(SystemExit) as ended:
        main(["--verdict", "false"])
    assert ended.value.code == 2


def test_nothing_run_is_no_success():
    assert Report([]).exit_code == 2


def test_a_choice_of_claims(monkeypatch, capsys):
    monkeypatch.setattr(command, "run", lambda claims, progress: Report(Outcome(c, c.verdict) for c in claims))
    assert main(["--verdict", "refuted", "--document", "A"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:-3]]
    assert ["A24" in line for line in lines].count(True) == 1
    assert all(line[0][0] == "A" and line[-1] == line[-2] == "refuted" for line in lines)


def test_cited_claims_have_no_check(capsys):
    assert main(["--verdict", "cited", "--document", "A"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:-3]
    assert lines and all(line.endswith("cited, not checked") for line in lines)


def test_json_in_place_of_the_table(capsys):
    assert main(["--id", "A24", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["exit_code"] == 0 and record["counts"]["refuted"] == 1 and "numpy" in record["versions"]
    assert record["command"] == "fdmath claims --id A24 --json"
    assert record["rows"][0]["id"] == "A24" and record["rows"][0]["agrees"] is True


def test_json_into_a_file(tmp_path, capsys):
    assert main(["--id", "A24", "--json", str(tmp_path / "claims.json")]) == 0
    assert json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["rows"]
    assert "1.52 %" in capsys.readouterr().out
    assert main(["--id", "A24", "--json", str(tmp_path)]) == 2


def test_a_row_is_one_line_and_marked_where_it_is_not_as_expected():
    claim = ledger()[0]
    good, bad = Outcome(claim, claim.verdict, "two\nlines"), Outcome(claim, "open", "x" * 200)
    lines = Report([good, bad]).table(width=100).splitlines()
    assert len(lines) == 6 and "two lines" in lines[1] and lines[2].startswith("✗") and len(lines[2]) == 100


@pytest.mark.parametrize("width, columns", [(60, 5), (80, 5), (100, 6), (150, 7)])
def test_a_narrow_table_keeps_the_figure(width, columns):
    claim = replace(ledger()[0], section="Deferred normalisation", how=("exact", "property"))
    head, line, *_ = Report([Outcome(claim, claim.verdict, "f" * 200)]).table(width).splitlines()
    assert len(head.split()) == columns - 1 and len(line) == width and line.endswith("f" * 15)


def test_a_stored_report_is_of_this_code_and_of_every_claim(tmp_path, monkeypatch):
    path, full = tmp_path / "claims.json", Report(Outcome(claim, claim.verdict, "7 u") for claim in ledger())
    assert stored(path) is None
    store(full, path)
    assert [(o.claim, o.verdict, o.figure) for o in stored(path)] == [(o.claim, o.verdict, o.figure) for o in full]
    store(Report(full.outcomes[1:]), path)
    assert stored(path) is None
    store(full, path)
    monkeypatch.setattr(report, "fingerprint", lambda: "other code")
    assert stored(path) is None
