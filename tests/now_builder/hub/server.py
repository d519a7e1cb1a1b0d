"""A small hub: the calls of its API that reading and publishing a data set make, in memory."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_testtoken0123456789"
COMMIT = "c0ffee" + 34 * "0"


@dataclass
class Hub:
    """What it holds, and what it was asked.

    ``cut`` is the number of bytes after which the next download breaks off; ``xet`` is how a
    request for a token of Xet is answered: by a status, or by an address to send the files to.
    Models are as data sets; their files are said to be in Xet. ``busy`` are patterns of paths with
    the headers of answers 429, each given once.
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    commits: list[list[dict]] = field(default_factory=list)
    cut: int | None = None
    xet: int | str = 404
    busy: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def start(self) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.hub = self
        server.daemon_threads = True
        return server


def _upload_of(path, held):
    """How a file is to be sent, and the hash of the one that is there."""
    large, content = path.endswith(".parquet"), held.get(path)
    blob = b"blob %d\0" % len(content or b"") + (content or b"")
    oid = hashlib.sha256(content or b"") if large else hashlib.sha1(blob)  # noqa: S324
    upload = {"path": path, "shouldIgnore": False, "uploadMode": "lfs" if large else "regular"}
    return upload if content is None else {**upload, "oid": oid.hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._file(body=False)

    def _is_busy(self, path):
        found = next((busy for busy in self.server.hub.busy if re.search(busy[0], path)), None)
        if found:
            self.server.hub.busy.remove(found)
            self._json({"error": "slow down"}, 429, **found[1])
        return bool(found)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if self._is_busy(path):
            return None
        if path == "/api/whoami-v2":
            return self._json({"name": "somebody"}) if self._known() else self._json({}, 401)
        if found := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            return self._about(found[1])
        if found := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)/tree/[^/]+", path):
            files = self.server.hub.files[found[1]].items()
            return self._json(
                [{"type": "file", "path": name, "size": len(content), "oid": COMMIT}
                 for name, content in files]
            )  # fmt: skip
        if re.search("/xet-(read|write)-token/", path):
            return self._xet()
        return self._file(body=True)

    def do_POST(self):  # noqa: PLR0911
        path = unquote(urlsplit(self.path).path)
        body = self._body()
        if self._is_busy(path):
            return None
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if not self._known():
            return self._json({"error": "no"}, 401)
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/preupload/main", path):
            held = self.server.hub.files[found[1]]
            files = [_upload_of(file["path"], held) for file in json.loads(body)["files"]]
            return self._json({"files": files})
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/commit/main", path):
            return self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        return self._json({}, 404)

    def do_PUT(self):
        body = self._body()
        if self.server.hub.cut is not None:
            self.server.hub.cut = None
            return self._json({}, 400)
        self.server.hub.objects[hashlib.sha256(body).hexdigest()] = body
        return self._json({})

    def _xet(self):
        """Answer a request for a token; status 0 is no answer while the test waits."""
        self._note()
        answer = self.server.hub.xet
        if answer == 0:
            self.server.waiting.wait(60)
            answer = 404
        if isinstance(answer, int):
            return self._json({"error": "no"}, answer)
        token = {"casUrl": answer, "accessToken": "t", "exp": 2**31}
        return self._json(
            token, X_Xet_Cas_Url=answer, X_Xet_Access_Token="t", X_Xet_Token_Expiration=2**31
        )

    def _body(self):
        self._note()
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _note(self):
        held = self.headers.get("Range") or ""
        self.server.hub.asked.append((self.command, unquote(self.path), held))

    def _known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _json(self, tree, status=200, **headers):
        body = json.dumps(tree).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _about(self, name):
        hub = self.server.hub
        if name not in hub.files or (name in hub.private and not self._known()):
            return self._json({}, 404, X_Error_Code="RepoNotFound")
        siblings = [{"rfilename": path} for path in hub.files[name]]
        about = {"id": name, "sha": COMMIT, "private": name in hub.private, "siblings": siblings}
        return self._json(about)

    def _create(self, tree):
        hub, name = self.server.hub, f"{tree.get('organization', 'somebody')}/{tree['name']}"
        url = {"url": f"http://127.0.0.1/datasets/{name}"}
        if name in hub.files:
            return self._json(url, 409)
        hub.files[name] = {}
        if tree.get("private"):
            hub.private.add(name)
        return self._json(url)

    def _batch(self, tree):
        base = f"http://{self.headers['Host']}/upload/"
        return self._json({"transfer": "basic", "objects": [
            wanted if wanted["oid"] in self.server.hub.objects
            else {**wanted, "actions": {"upload": {"href": base + wanted["oid"]}}}
            for wanted in tree["objects"]]})  # fmt: skip

    def _commit(self, name, lines):
        hub = self.server.hub
        hub.commits.append(lines)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                hub.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[name][value["path"]] = hub.objects[value["oid"]]
            else:
                del hub.files[name][value["path"]]
        url = f"http://127.0.0.1/datasets/{name}/commit/{COMMIT}"
        return self._json({"commitOid": COMMIT, "commitUrl": url})

    def _file(self, *, body):
        self._note()
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        found = re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not found or found[1] not in hub.files:
            return self._json({}, 404, X_Error_Code="RepoNotFound")
        if found[2] not in {"main", COMMIT}:
            return self._json({}, 404, X_Error_Code="RevisionNotFound")
        if found[3] not in hub.files[found[1]]:
            return self._json({}, 404, X_Error_Code="EntryNotFound")
        content = hub.files[found[1]][found[3]]
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        if not path.startswith("/datasets"):
            self.send_header("X-Xet-Hash", hashlib.sha256(content).hexdigest())
            self.send_header(
                "X-Xet-Refresh-Route", f"http://{self.headers['Host']}/xet-read-token/m"
            )
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            end, hub.cut = (len(content) if hub.cut is None else hub.cut), None
            self.wfile.write(content[start:end])
            if end < len(content):
                self.wfile.flush()
                self.server.waiting.wait(60)
                self.close_connection = True
        return None
