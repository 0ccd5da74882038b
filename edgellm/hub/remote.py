"""What is in a repository on Hugging Face: its files, their checksums, its licence; and where each file is.

huggingface_hub says how: the address of a file (`hf_hub_url`), the token (`get_token`: HF_TOKEN, or what
`hf auth login` stored) and the reading of the API's answers (`ModelInfo`). The requests themselves are made in
web.py, like those to the package index, because its own client

- checks the size of a download, not its sha256; names unfinished files .incomplete inside its own cache, where
  a file of a finished name is taken for good whatever is in it;
- asks the endpoint for a list of coding agents before the first request, to report which one is running;
- reads HF_ENDPOINT and HF_HUB_OFFLINE once, when it is imported, and stands on requests, httpx or httpx2
  depending on its version, each with exceptions and rules for redirects of its own.

So there is one transfer with one set of promises for every source: bytes resume, hashes are checked before a
file gets its name, a token never follows a redirect to another host. The library takes half a second to import:
this module imports it inside functions, and is itself imported only when the network will be used.
"""

from __future__ import annotations

import difflib
import json
import re
import urllib.parse
from typing import TYPE_CHECKING, Any

from edgellm.core import env
from edgellm.core.errors import DownloadError, ModelError, ModelNotFound
from edgellm.core.record import dataclass
from edgellm.hub import quants, web
from edgellm.hub.spelling import HFName, safe_path
from edgellm.hub.web import Checksum, SourceError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_ATTEMPTS = 4  # for one page of the API
_MAX_SIZE = 1 << 46


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. checksum is None where the endpoint states none."""

    path: str
    size: int
    checksum: Checksum | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit.

    Attributes:
        name: "user/repository", in its own capitals. commit: 40 hex digits.
        files: path -> file, the .gguf files alone.
        license: its name, "" where the model card states none.
        gated: whether its owner wants terms to be accepted before anything can be downloaded.
    """

    name: str
    commit: str
    files: dict[str, RemoteFile]
    license: str
    gated: bool

    def url(self, path: str) -> str:
        """The address of a file, at this commit."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.name, path, revision=self.commit, endpoint=endpoint())


def endpoint() -> str:
    """The hub in use, without user and password."""
    return web.split_auth(env.HF_ENDPOINT.get())[0]


def page(repo: str) -> str:
    """The address of a repository, for people."""
    return f"{endpoint()}/{repo}"


def authorization() -> str | None:
    """The Authorization header for the endpoint: the user's token, or the user and password of HF_ENDPOINT."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else env.HF_TOKEN.get() or get_token()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise DownloadError("HF_TOKEN (or the stored token) contains blanks or other characters that no token has")
    return f"Bearer {token}" if token else web.split_auth(env.HF_ENDPOINT.get())[1]


def look(name: HFName) -> Repository:
    """The repository that a name means, as it is now. ModelNotFound, with near names; DownloadError."""
    path = f"api/models/{name.repo}"
    if name.revision:
        path += f"/revision/{urllib.parse.quote(name.revision, safe='')}"
    try:
        data = _get(f"{path}?blobs=true")
    except SourceError as e:
        raise _refused(name, e) from e
    import huggingface_hub

    parse: Any = huggingface_hub.ModelInfo  # it has no annotations
    try:
        return _read(name, parse(**data))
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise DownloadError(
            f"{name.repo}: {endpoint()} did not answer like the Hugging Face API ({type(e).__name__}: {e}); "
            f"check HF_ENDPOINT, or whether a proxy stands between"
        ) from e


def _read(name: HFName, info: ModelInfo) -> Repository:
    commit = info.sha or ""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"the commit is {commit!r}")
    files = {}
    for item in info.siblings or ():
        if item.rfilename.lower().endswith(".gguf") and safe_path(item.rfilename):
            size = item.lfs.size if item.lfs else item.size
            if type(size) is not int or not 0 < size <= _MAX_SIZE:
                raise ValueError(f"the size of {item.rfilename} is {size!r}")
            files[item.rfilename] = RemoteFile(item.rfilename, size, _checksum(item.lfs, item.blob_id))
    same = str(info.id).lower() == name.repo.lower()  # else it was renamed, and both names work
    return Repository(info.id if same else name.repo, commit, files, _license(info), bool(info.gated))


def _checksum(lfs: Any, blob_id: str | None) -> Checksum | None:
    """Large files carry their sha256, small ones the id of their git blob."""
    if lfs is not None and re.fullmatch(r"[0-9a-f]{64}", str(lfs.sha256)):
        return Checksum(lfs.sha256)
    if lfs is None and re.fullmatch(r"[0-9a-f]{40}", str(blob_id)):
        return Checksum(str(blob_id), "git")
    return None


def _license(info: ModelInfo) -> str:
    """From the model card, else from the API's tags."""
    card: Any = info.card_data
    found = getattr(card, "license", None)
    if found == "other":
        found = getattr(card, "license_name", None) or found
    if not found:
        found = next((t.partition(":")[2] for t in info.tags or () if t.startswith("license:")), "")
    if isinstance(found, list):
        found = ", ".join(map(str, found))
    return re.sub(r"[\x00-\x1f\x7f]", "", str(found))[:80]


def _get(path: str) -> Any:
    """A JSON answer of the API. SourceError; DownloadError if it is no JSON."""
    url = f"{endpoint()}/{path}"
    _, body, _ = web.get_page(url, "application/json", authorization(), _ATTEMPTS)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise DownloadError(
            f"{url.partition('?')[0]} did not answer with JSON; check HF_ENDPOINT, or whether a proxy stands between"
        ) from e


def search(**query: str) -> list[str]:
    """Names of repositories with GGUF files; none when the endpoint cannot say. Only ever used for advice."""
    words = urllib.parse.urlencode({**query, "filter": "gguf", "sort": "downloads", "limit": "40"})
    try:
        found = _get(f"api/models?{words}")
        return [item["id"] for item in found if re.fullmatch(r"[\w.-]+/[\w.-]+", item["id"], re.ASCII)][:40]
    except (SourceError, ModelError, TypeError, LookupError):
        return []


# -- what to say when it does not work -------------------------------------------------------------------------


def _refused(name: HFName, error: SourceError) -> ModelError:
    """The typed error for an API answer that was none."""
    has_token = authorization() is not None
    if error.code == "RevisionNotFound":
        return ModelNotFound(f"{page(name.repo)} has no revision {name.revision!r}; without @REVISION, main is used")
    if error.code == "GatedRepo":
        return gated(name.repo)
    if error.status == 404 or (error.status in (401, 403) and not has_token) or error.code == "RepoNotFound":
        return ModelNotFound(_no_repository(name))
    if error.status == 401:
        return DownloadError(
            f"{endpoint()} refuses the token (HTTP 401). Make a new one at {endpoint()}/settings/tokens and set "
            f"HF_TOKEN, or unset it: public models need none."
        )
    if error.status == 403:
        return DownloadError(f"{name.repo}: {endpoint()} says that your token may not see it (HTTP 403).")
    return unreachable(name, error)


def unreachable(name: HFName, error: SourceError) -> DownloadError:
    """For what may work at another time."""
    more = " Setting HF_TOKEN raises the limit." if error.status == 429 and authorization() is None else ""
    return DownloadError(
        f"{name} could not be fetched: {error}.{more} Run the command again to go on from where it stopped; "
        f"edgellm list shows what is on this machine."
    )


def gated(repo: str) -> DownloadError:
    """For a repository whose terms have not been accepted with the token in use, if any."""
    token = "The token in use has" if authorization() is not None else "HF_TOKEN is not set, so nobody has"
    return DownloadError(
        f"{repo} is gated: its owner wants its terms to be accepted first. {token} not done that. Open {page(repo)} "
        f"in a browser, log in and accept; then make a token at {endpoint()}/settings/tokens and set HF_TOKEN to it."
    )


def _no_repository(name: HFName) -> str:
    user, _, title = name.repo.partition("/")
    known = [*search(author=user), *search(search=title)]
    near = difflib.get_close_matches(name.repo, known, n=4, cutoff=0.6)
    near = list(dict.fromkeys([*near, *(k for k in known if title.lower() in k.lower())]))[:4]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    private = "" if authorization() is not None else " If it is private, set HF_TOKEN."
    path = "" if name.explicit else f" ({name.repo} is no file or folder here either.)"
    return f"{endpoint()} has no repository {name.repo}.{hint}{private}{path}"


def no_gguf(repo: str) -> str:
    """For a repository without a GGUF file: who has the model as one."""
    title = re.sub(r"[-_.]?(GGUF|gguf)$", "", repo.partition("/")[2])
    found = [r for r in search(search=title) if r != repo][:4]
    where = f" Repositories that do: {', '.join(found)}." if found else ""
    return f"{page(repo)} has no .gguf file that holds a language model.{where}"


def choices(repo: str, candidates: list[quants.Candidate], among: list[quants.Candidate]) -> str:
    """Spellings of `candidates`, at most twenty."""
    named = [f"{repo}:{quants.tag_of(c, among)}" for c in candidates[:20]]
    return ", ".join(named) + (f" and {len(candidates) - 20} more" if len(candidates) > 20 else "")
