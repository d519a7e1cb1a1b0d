"""The checks of requirements, each against a real or a broken installation."""

from pathlib import Path

import pytest

from now_builder.machine import doctor
from now_builder.machine.chromium import find_chromium


@pytest.mark.browser
def test_chromium_and_glyphs_are_found_by_using_them() -> None:
    findings = {finding.name: finding for finding in doctor.check()}
    assert findings["Chromium"].found
    assert str(find_chromium()) in str(findings["Chromium"])
    assert findings["Chinese glyphs"].found
    assert findings["python playwright"].found


@pytest.mark.browser
def test_only_a_sample_that_a_font_has_counts_as_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripts = ("Latin", "a", True, "x"), ("Nobody's", "\U0010fffd", True, "x")
    monkeypatch.setattr(doctor, "_SCRIPTS", scripts)
    path = find_chromium()
    assert path is not None
    assert doctor._drawn(path) == [True, False]


def test_without_a_chromium_that_runs_everything_it_shows_is_missing_and_a_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    for path, words in ((None, "none"), (broken, "does not run")):
        monkeypatch.setattr(doctor, "find_chromium", lambda path=path: path)
        lines = [str(finding) for finding in doctor.check() if finding.needed and not finding.found]
        assert words in lines[0]
        assert "; apt install chromium-headless-shell" in lines[0]
        assert any(line.startswith("MISSING Chinese glyphs") for line in lines)


def test_a_driver_that_lacks_a_library_is_missing_and_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare Debian lacks one that Playwright's driver needs."""
    whole = doctor._check_driver()
    assert whole.found
    assert whole.detail.startswith("Version ")
    node = tmp_path / "node"
    node.write_text(
        "#!/bin/sh\necho 'node: error while loading shared libraries: libatomic.so.1: cannot open'"
        " >&2\nexit 127\n"
    )
    node.chmod(0o755)
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", str(node))
    (driver,) = (finding for finding in doctor.check() if finding.name == "Playwright's driver")
    assert not driver.found
    assert driver.needed
    assert doctor.install_command([driver]).endswith("--no-install-recommends libatomic1")
    assert "does not run (node: error while loading shared libraries: libatomic.so.1" in str(driver)
    assert str(driver).endswith("; apt install libatomic1")
    node.unlink()
    assert not doctor._check_driver().found


def test_playwrights_own_shell_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = tmp_path / "chromium_headless_shell-1200" / "chrome-linux" / "headless_shell"
    shell.parent.mkdir(parents=True)
    shell.write_text("", encoding="utf-8")
    shell.chmod(0o755)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.setattr("now_builder.machine.chromium.shutil.which", lambda *_, **__: None)
    assert find_chromium() == shell


def test_punkt_is_found_where_nltk_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "mine"))
    assert "python -m nltk.downloader punkt_tab" in str(doctor._check_punkt())
    (tmp_path / "mine" / "tokenizers" / "punkt_tab").mkdir(parents=True)
    assert doctor._check_punkt().found


def test_a_gpu_is_what_its_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for script, found, words in [
        (None, False, "no NVIDIA driver"),
        ("echo 'NVIDIA X, 80 GiB, 555.1'", True, "1 x NVIDIA X, 80 GiB, 555.1"),
        ("echo broken >&2; exit 9", False, "the driver does not answer"),
        ("true", False, "a driver, and no GPU"),
    ]:
        if script is not None:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (tmp_path / "nvidia-smi").chmod(0o755)
        finding = doctor._check_gpu()
        assert (finding.found, words in finding.detail) == (found, True)
