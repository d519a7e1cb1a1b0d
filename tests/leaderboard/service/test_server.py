"""The service: accounts, submissions, boards and pages, over a real socket, on both databases."""

import json

import httpx
import pytest

from leaderboard.board.exports import FORMATS, rows_of
from leaderboard.board.tables import make_board
from leaderboard.client import read_token
from leaderboard.scoring.result import Result
from leaderboard.service import events, index
from leaderboard.service.access import hash_operator_token
from leaderboard.service.running import Settings
from leaderboard.service.server import make_app
from leaderboard.site.pages import Site
from leaderboard.store.entries import read_results
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import ConfigError
from now_builder.formats.benchmarks import BOARDS
from tests.leaderboard.conftest import OPERATOR_TOKEN as OPERATOR
from tests.leaderboard.conftest import at_once, make_similarity


def _is_problem(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    tree = answer.json()
    assert tree["status"] == status
    assert {"type", "title", "status", "detail"} <= set(tree)
    return tree


def test_a_submission_is_scored_filed_and_shown(board, zipped, tmp_path):
    first = board.put(zipped())
    assert first.status_code == 201
    assert first.json()["method"]["name"] == "Mine"
    assert Result.model_validate_json(first.text).rsum == first.json()["rsum"]
    again = board.put(zipped())
    assert (again.status_code, again.text) == (200, first.text)
    entry = read_results([tmp_path / "store"])[0]
    assert entry.result.to_json() == first.text
    assert entry.filing.submitter == "operator"
    told = board.call("GET", first.headers["location"]).json()
    assert (told["name"], told["submitter"], told["evidence"]) == (entry.name, "operator", "scored")
    assert board.call("GET", told["result"]).text == first.text
    assert "Mine" in board.call("GET", told["page"]).text
    assert told["page"] in first.headers["link"]


def test_the_pages_are_those_of_the_static_site(plain):
    page = plain.call("GET", "/")
    assert page.text == plain.call("GET", "/index.html").text == Site([]).get("index.html")[0]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert plain.call("GET", "/healthz").json()["status"] == "ok"


def test_a_missing_page_is_a_problem_and_for_browsers_a_page(plain):
    for path in ("/boards/none.html", "/entries/none.html", "/deep/er/none"):
        answer = plain.call("GET", path, headers={"Accept": "text/html,*/*"})
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert f'href="{"../" * path[1:].count("/")}index.html"' in answer.text
    for path in ("/nothing", "/../../etc/passwd", "/entries/%2e%2e/index.html", "/docs"):
        _is_problem(plain.call("GET", path), 404)
    for path in ("x", "entries/none", "entries/none/result", "boards/none"):
        _is_problem(plain.call("GET", f"/v1/{path}"), 404)
    _is_problem(plain.call("GET", "/v1/none", headers={"Accept": "text/html"}), 404)
    for method in ("POST", "DELETE", "PATCH"):
        _is_problem(plain.call(method, "/v1/submissions"), 405)
    wrong = plain.call("GET", "/v1/boards/jieba?ensemble=perhaps")
    assert _is_problem(wrong, 422)["problems"][0]["field"] == "query.ensemble"


def test_head_is_get_without_the_body_and_what_is_known_is_not_sent_again(plain, zipped):
    plain.put(zipped())
    for path in ("/", "/v1/boards/jieba", "/openapi.json", "/v1/schema/result.json"):
        full, head = plain.call("GET", path), plain.call("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["etag"] == full.headers["etag"]
        assert head.headers["content-length"] == str(len(full.content))
        known = {"If-None-Match": f'"other", W/{full.headers["etag"]}'}
        assert plain.call("GET", path, headers=known).status_code == 304
    plain.put(zipped(1))
    known = {"If-None-Match": full.headers["etag"]}
    assert plain.call("GET", "/v1/boards/jieba", headers=known).status_code == 200
    assert "no-store" in plain.call("GET", "/v1/me", OPERATOR).headers["cache-control"]


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer wrong", f"Basic {OPERATOR}", OPERATOR, "Bearer é"]
)
def test_without_the_token_nothing_is_read(plain, zipped, tmp_path, value):
    answer = plain.put(zipped(), headers={"Authorization": value.encode("utf-8")}, token=None)
    assert OPERATOR not in json.dumps(_is_problem(answer, 401))
    assert answer.headers["www-authenticate"] == "Bearer"
    assert list((tmp_path / "store").glob("results/*")) == []


def test_a_refusal_lists_every_problem_and_files_nothing(board, zipped, tmp_path):
    ann = board.token("ann")
    answer = board.put(b"PK not really", ann)
    problem = _is_problem(answer, 422)["problems"][0]
    assert set(problem) == {"code", "field", "found", "expected", "mend"}
    assert problem["code"].startswith("zip.")
    assert str(tmp_path) not in answer.text
    assert list((tmp_path / "store").glob("results/*")) == []
    left = board.call("GET", "/v1/me", ann).json()["quota"]
    assert (left["attempts"], left["scored"]) == (49, 5)


def test_a_board_without_a_release_is_read_only_and_has_no_database(serving, tmp_path, zipped):
    url, _ = serving(make_app(Settings(tmp_path / "store")))
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    answer = httpx.put(f"{url}/v1/submissions", content=zipped(), headers=headers)
    assert "read-only" in _is_problem(answer, 403)["detail"]
    for path in ("/", "/v1/boards/bpe", "/healthz", "/metrics"):
        assert httpx.get(url + path).status_code == 200
    assert list((tmp_path / "store").iterdir()) == []


def test_many_at_once_are_neither_lost_nor_doubled(board, zipped, tmp_path):
    ann, content = board.token("ann"), zipped()
    answers = at_once(lambda _: board.put(content, ann), range(12))
    assert sorted(answer.status_code for answer in answers) == [200] * 11 + [201]
    assert len({answer.text for answer in answers}) == 1
    assert len(list((tmp_path / "store").glob("results/*"))) == 1
    assert board.call("GET", "/v1/me", ann).json()["quota"]["scored"] == 4


def test_a_file_belongs_to_who_sent_it_first(board, zipped):
    ann, bob = board.token("ann"), board.token("bob")
    assert board.put(zipped(), ann).status_code == 201
    _is_problem(board.put(zipped(), bob), 409)
    assert board.call("GET", "/v1/me", bob).json()["quota"]["scored"] == 5
    assert len(board.call("GET", "/v1/submissions", ann).json()["submissions"]) == 1
    assert board.call("GET", "/v1/submissions", bob).json()["submissions"] == []


def test_two_quotas_one_of_them_for_the_test_split_alone(make_board, database_url, zipped):
    board = make_board(database_url, attempts=5, scored=1)
    ann = board.token("ann")
    assert board.put(zipped(0, split="dev"), ann).status_code == 201
    assert board.put(zipped(0), ann).status_code == 201
    over = board.put(zipped(1), ann)
    _is_problem(over, 429)
    assert int(over.headers["retry-after"]) <= 24 * 3600 + 1
    assert board.put(zipped(0), ann).status_code == 200
    assert board.call("POST", "/v1/validate", ann, content=zipped(2)).json()["valid"]
    _is_problem(board.put(zipped(0), ann), 429)
    assert board.put(zipped(3)).status_code == 201, "who has the machine has no quota"


def test_validate_says_what_submit_would_and_stores_nothing(plain, zipped, tmp_path):
    answer = plain.call("POST", "/v1/validate", OPERATOR, content=zipped())
    assert answer.json() == {"valid": True, "track": "jieba", "split": "test", "method": "Mine"}
    refused = plain.call("POST", "/v1/validate", OPERATOR, content=zipped()[:-1])
    assert _is_problem(refused, 422) == _is_problem(plain.put(zipped()[:-1]), 422)
    assert list((tmp_path / "store").glob("results/*")) == []
    assert list((tmp_path / "store" / "private" / "incoming").iterdir()) == []


def test_a_withdrawn_entry_leaves_the_board_and_a_tombstone_stays(board, zipped, tmp_path):
    ann, bob = board.token("ann"), board.token("bob")
    entry = board.put(zipped(), ann).headers["location"]
    _is_problem(board.call("POST", f"{entry}/withdraw", bob, json={"reason": "envy"}), 403)
    for _ in range(2):
        told = board.call("POST", f"{entry}/withdraw", ann, json={"reason": "wrong file"}).json()
        assert told["withdrawal"]["reason"] == "wrong file"
    assert read_results([tmp_path / "store"])[0].withdrawal.reason == "wrong file"
    assert "Mine" not in board.call("GET", "/v1/boards/jieba").text
    assert entry.rpartition("/")[2] not in board.call("GET", "/").text
    assert "wrong file" in board.call("GET", told["page"]).text
    name = entry.rpartition("/")[2]
    _is_problem(board.call("GET", f"{entry}/result"), 410)
    _is_problem(board.call("GET", f"/v1/compare?a={name}&b={name}"), 410)
    shown = board.call("GET", entry).json()
    assert (shown["rsum"], shown["rsum_interval"], shown["flags"]) == (None, None, [])
    _is_problem(board.put(zipped(), ann), 409)
    kinds = [event.kind for event in events.read(board.service.database)]
    assert kinds[-2:] == ["entry.filed", "entry.withdrawn"]


def test_a_name_that_looks_like_another_ones_is_refused(plain, zipped):
    assert plain.put(zipped(0, "PC2")).status_code == 201
    assert plain.put(zipped(1, "PC²")).status_code == 201, "the same name"
    refused = plain.put(zipped(2, "РС²"))
    _is_problem(refused, 422)
    assert refused.json()["problems"][0]["code"] == "name.lookalike"


def test_a_board_is_read_by_filters(plain, zipped):
    plain.put(zipped(0, "One", training={"ensemble_size": 1}))
    plain.put(zipped(1, "Two", training={"ensemble_size": 2, "external_data": "captions"}))
    none = {"external_data": "none but the release", "uses_external_data": False}
    plain.put(zipped(2, "Three", postprocessing={"kind": "transductive"}, training=none))

    def methods(query=""):
        rows = plain.call("GET", f"/v1/boards/jieba?{query}").json()["rows"]
        return {row["method"] for row in rows}

    assert {"One", "Two", "Three", "SGR", "BiCro"} <= methods()
    assert "Two" in methods("ensemble=true") - methods("ensemble=false")
    assert "One" in methods("ensemble=false") - methods("ensemble=true")
    assert methods("postprocessing=transductive") == {"Three"}
    assert methods("external_data=false") == {"One", "Three"}
    assert methods("external_data=true&tier=scored") == {"Two"}
    assert methods("tier=scored") == {"One", "Two", "Three"}
    assert "SGR" in methods("tier=reported")
    boards = plain.call("GET", "/v1/boards").json()["boards"]
    counts = {board["board"]: board["entries"] for board in boards}
    assert counts == dict.fromkeys(BOARDS, 0) | {"jieba": 3}


def test_a_board_is_exported_as_the_command_exports_it(plain, zipped, tmp_path):
    plain.put(zipped())
    rows = rows_of(make_board("jieba", read_results([tmp_path / "store"])))
    for kind, write in FORMATS.items():
        answer = plain.call("GET", f"/v1/boards/jieba?format={kind}")
        assert answer.text == write(rows)
        assert "html" not in answer.headers["content-type"]
    _is_problem(plain.call("GET", "/v1/boards/jieba?format=html"), 422)
    for board in BOARDS:
        assert plain.call("GET", f"/v1/boards/{board}").json()["rows"]


def test_two_entries_are_compared(plain, zipped):
    names = [plain.put(zipped(seed)).headers["location"].rpartition("/")[2] for seed in (0, 1)]
    told = plain.call("GET", "/v1/compare", params=dict(zip("ab", names, strict=True))).json()
    rsums = [plain.call("GET", f"/v1/entries/{name}").json()["rsum"] for name in names]
    assert told["difference"] == pytest.approx(rsums[0] - rsums[1])
    assert told["low"] <= told["difference"] <= told["high"]
    assert set(told["i2t"]) == {"1", "5", "10"}
    _is_problem(plain.call("GET", f"/v1/compare?a={names[0]}&b=none"), 404)
    _is_problem(plain.call("GET", "/v1/compare"), 422)
    dev = plain.put(zipped(split="dev")).headers["location"].rpartition("/")[2]
    other = _is_problem(plain.call("GET", f"/v1/compare?a={names[0]}&b={dev}"), 422)
    assert "expected the same" in other["detail"]


def test_a_service_that_dies_between_file_and_row_finds_the_entry_when_it_starts(
    make_board, database_url, zipped, monkeypatch
):
    board = make_board(database_url)
    ann = board.token("ann")

    def die(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(index, "record_entry", die)
        assert board.put(zipped(0), ann).status_code == 500
        assert board.put(zipped(2)).status_code == 500
    board.stop()
    board = make_board(database_url)
    assert board.put(zipped(0), ann).status_code == 200
    assert board.put(zipped(2)).status_code == 200
    assert board.call("GET", "/v1/me", ann).json()["quota"]["scored"] == 4
    assert len(board.call("GET", "/v1/submissions", ann).json()["submissions"]) == 1


def test_the_description_of_the_api_is_complete(plain):
    tree = plain.call("GET", "/openapi.json").json()
    assert tree["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    for path, methods in tree["paths"].items():
        for method, route in methods.items():
            assert route["description"] or route["summary"], path
            answers = route["responses"]
            good = [answer for status, answer in answers.items() if status.startswith("2")]
            assert good, (path, method)
            if "security" in route:
                assert {"401", "403"} <= set(answers), (path, method)
            for status, answer in answers.items():
                if status[0] in "45":
                    schema = answer["content"]["application/problem+json"]["schema"]
                    assert schema["$ref"].endswith("ProblemDocument"), (path, method, status)
    assert "requestBody" in tree["paths"]["/v1/submissions"]["put"]
    for name in ("submission", "result"):
        schema = plain.call("GET", f"/v1/schema/{name}.json").json()
        assert schema["additionalProperties"] is False


def test_what_prometheus_reads_counts_and_names_nobody(board, zipped):
    ann = board.token("ann-of-the-metrics")
    board.put(zipped(), ann)
    board.put(b"nonsense", ann)
    text = board.call("GET", "/metrics").text
    assert 'now_submissions_total{outcome="new"} 1.0' in text
    assert 'now_submissions_total{outcome="refused"} 1.0' in text
    assert "now_entries 1.0" in text
    assert 'route="/v1/submissions",status="201"' in text
    assert "ann-of-the-metrics" not in text


def test_health_tells_when_the_database_or_the_disk_fails(plain):
    plain.service.incoming.rename(plain.service.incoming.with_name("gone"))
    assert "store" in _is_problem(plain.call("GET", "/healthz"), 503)["detail"]
    plain.service.incoming.mkdir()
    assert plain.call("GET", "/healthz").status_code == 200


def test_the_log_names_the_file_that_stops_the_pages(plain, tmp_path, caplog):
    damaged = tmp_path / "store" / "results" / "bert-test-0123456789ab.json"
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_text("{")
    assert plain.call("GET", "/").status_code == 500
    faults = [json.loads(one.getMessage()) for one in caplog.records if "fault" in one.getMessage()]
    assert [fault["file"] for fault in faults] == [str(damaged)]


def test_a_token_is_needed_long_and_never_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("NOW_LEADERBOARD_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="NOW_LEADERBOARD_TOKEN"):
        read_token(None)
    (tmp_path / "token").write_text(f"{OPERATOR}\n")
    assert read_token(tmp_path / "token") == OPERATOR
    with pytest.raises(ConfigError, match="found 5 characters"):
        hash_operator_token("short")


def test_the_cap_follows_the_release(plain):
    """24 test pairs: two matrices of 8 bytes a number, and room for the description."""
    limit = plain.service.settings.judge.max_bytes
    assert 2 * 24 * 24 * 8 < limit < 2 * 24 * 24 * 8 + 5 * 2**20


def test_the_api_gives_the_flags_that_take_two_entries(plain, tmp_path, release):
    """An entry, the entries of a token, and the board: a copy is flagged in each."""
    names, found = [], []
    for method in ("Theirs", "Mine"):
        matrix = make_similarity()
        pack(tmp_path / "x.zip", matrix, new_submission(release, "jieba", "test", method))
        sent = plain.put((tmp_path / "x.zip").read_bytes())
        names.append(sent.headers["location"].rpartition("/")[2])
    (rows,) = plain.call("GET", "/v1/boards/jieba").json().values()
    mine = plain.call("GET", "/v1/submissions", OPERATOR).json()["submissions"]
    of_board = {row["entry"]: row["flags"] for row in rows if row["entry"]}
    of_owner = {row["name"]: row["flags"] for row in mine}
    for name in names:
        told = plain.call("GET", f"/v1/entries/{name}").json()
        codes = [flag["code"] for flag in told["flags"]]
        assert codes == of_board[name] == of_owner[name]
        found.append(codes)
    assert sorted(found) == [[], ["near-identical"]]  # both were filed within a second
