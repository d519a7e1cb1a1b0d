"""What ships beside the code names only what exists: containers, workflows, the extras' script."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from now_builder.cli import app as builder
from tests.test_extras import LIGHT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
CONTAINERS = sorted((ROOT / "containers").glob("*.Containerfile"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def instructions(path):
    """Instructions of a container file, a word and the rest each, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_container_runs_as_nobody_in_particular_and_names_what_exists(path):
    found = instructions(path)
    told = dict(found)
    assert int(told["USER"]) >= 10_000
    assert "HEALTHCHECK" in told
    assert all(re.search(r":\d+\.\d+\.\d+-slim", rest) for word, rest in found if word == "FROM")
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    for word, rest in found:
        for source in shlex.split(rest)[:-1] if word == "COPY" else ():
            assert (ROOT / source).exists(), source
            assert source in allowed, f"{source} is kept out by .dockerignore"
    runs = " ".join(rest for word, rest in found if word == "RUN")
    assert "--constraint /constraints.txt" in runs
    (extras,) = re.findall(r"noise-of-web\[([a-z,-]+)\]", runs)
    assert set(extras.split(",")) <= EXTRAS


def test_the_containers_commands_are_commands():
    (build,) = (dict(instructions(path)) for path in CONTAINERS)
    assert yaml.safe_load(build["ENTRYPOINT"]) == ["now-builder"]
    _, word = yaml.safe_load(build["HEALTHCHECK"].partition("CMD ")[2])
    assert word in get_command(builder).commands


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_actions_and_have_few_rights(path):
    tree = yaml.safe_load(path.read_text())
    assert tree["permissions"] == {"contents": "read"}
    for job in tree["jobs"].values():
        assert job["timeout-minutes"]
        assert set(job.get("permissions", {})) <= {"id-token"}
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", f"x@{'0' * 40}"))
            for script in re.findall(r"(?:scripts|\.ci)/\w+(?:\.sh)?", step.get("run", "")):
                assert (ROOT / script).exists()
    assert "secrets." not in path.read_text()


def test_forms_are_forms():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        tree = yaml.safe_load(path.read_text())
        assert path.stem == "config" or {"name", "description", "body"} <= set(tree)


def test_every_extra_of_users_is_tried_by_the_script():
    text = (ROOT / "scripts" / "extras.sh").read_text()
    tried = {name.replace("_", "-") for name in re.findall(r"^try_(\w+)\(\)", text, re.MULTILINE)}
    assert tried == (EXTRAS - {"all", "dev", "docs"}) | {"none"}
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (named,) = re.findall(r"scripts/extras\.sh (.+)", release)
    assert {*named.split(), *LIGHT} <= tried
