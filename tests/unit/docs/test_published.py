"""Pages that are read away from the checkout: the README on a package index, the site."""

from __future__ import annotations

import platform
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ADDRESS = "https://code.example/crew"


SETUP = runpy.run_path(str(ROOT / "setup.py"))
published, source = SETUP["published"], SETUP["source"]


def targets(text: str) -> list[str]:
    """What the links and pictures of a Markdown text lead to."""
    return re.findall(r"\]\(([^)]*)\)", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def test_without_an_address_the_readme_names_files_that_are_there() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = published(readme, "")
    assert len(targets(readme)) > 20
    assert not [target for target in targets(shown) if not target.startswith("https://")]
    named = re.findall(r"`((?:docs/)?[\w/-]+(?:\.md)?)`", "\n".join(set(shown.splitlines()) - set(readme.splitlines())))
    files = {target for target in targets(readme) if "://" not in target}
    assert files <= set(named)
    assert not [file for file in files if not (ROOT / file).is_file()]


def test_with_an_address_every_link_of_the_readme_leads_there() -> None:
    readme = (ROOT / "README.md").read_text()
    wanted = [t if "://" in t else f"{ADDRESS}/blob/HEAD/{t}" for t in targets(readme)]
    assert targets(published(readme, ADDRESS)) == wanted


@pytest.mark.parametrize(("text", "without", "with_address"), [
    ("[a](docs/tutorial.md)", "a (`docs/tutorial.md`)", f"[a]({ADDRESS}/blob/HEAD/docs/tutorial.md)"),
    ("[`b/`](b/)", "`b`", f"[`b/`]({ADDRESS}/blob/HEAD/b)"),
    ("[c.md](c.md#part)", "`c.md`", f"[c.md]({ADDRESS}/blob/HEAD/c.md#part)"),
    ("[c](c.md#part)", "c (`c.md`)", f"[c]({ADDRESS}/blob/HEAD/c.md#part)"),
    ("![words](p.png)", "words", f"![words]({ADDRESS}/raw/HEAD/p.png)"),
    ("[x](https://a.example/b) [y](#z) [m](mailto:a@b.example)",) * 3,
    ("```md\n[a](b.md)\n```",) * 3,
])  # fmt: skip
def test_a_link(text: str, without: str, with_address: str) -> None:
    assert (published(text, ""), published(text, ADDRESS)) == (without, with_address)


def test_links_of_a_page_within_the_site_stay() -> None:
    text = "[a](../tutorial.md#x) [b](s3.md) [log](../../CHANGELOG.md)"
    shown = published(text, "", "docs/how-to", site="docs")
    assert shown == "[a](../tutorial.md#x) [b](s3.md) log (`CHANGELOG.md`)"


def test_pages_link_to_files_that_are_there() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for target in targets(page.read_text()):
            if not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target.partition("#")[0]).exists(), (page, target)


def test_no_page_names_a_repository_that_the_package_does_not() -> None:
    """A guessed address may be somebody else's."""
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {one for page in pages for one in re.findall(rf"https?://[^\s)`]*/{name}[^\s)`]*", page.read_text())}
    assert not [one for one in found if not source() or not one.startswith(source())]


def test_an_older_python_is_told_which_one_is_needed() -> None:
    """pip runs setup.py before it reads requires-python: what came was a traceback about tomllib."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    look = "import runpy, sys; sys.modules['tomllib'] = None; runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rocketcrew needs Python {needed} or newer; this is {platform.python_version()}\n"
