"""A small Hugging Face Hub on loopback: the calls by which models are committed and downloaded.

Large files go the LFS way (batch, upload by PUT, a pointer in the commit), small ones inside the
commit, as on the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlparse


class Store:
    """Repositories: every commit is a mapping from file names to bytes."""

    def __init__(self) -> None:
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.blobs: dict[str, bytes] = {}  # LFS objects by sha256
        self.calls: list[tuple[str, str]] = []
        self.tampered: dict[str, bytes] = {}  # answers for files, in place of what was committed

    def at(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        history = self.commits.get(repository) or []
        if revision == "main":
            return history[-1] if history else None
        return next((commit for commit in history if commit[0] == revision), None)

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> str:
        _, last = self.at(repository, "main") or ("", {})
        files = dict(last)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
        # Git's identifiers, too, are sha1.
        text = json.dumps(sorted((n, hashlib.sha1(b).hexdigest()) for n, b in files.items()))
        number = hashlib.sha1(f"{len(self.commits[repository])} {text}".encode()).hexdigest()
        self.commits[repository].append((number, files))
        return number


class Handler(BaseHTTPRequestHandler):
    store: ClassVar[Store]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        self.store.calls.append((self.command, self.path))

    def answer(self, value: Any, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code: str = "RepoNotFound") -> None:
        self.answer({"error": code}, 404, X_Error_Code=code, X_Error_Message=code)

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        body, store = self.read(), self.store
        words = unquote(urlparse(self.path).path).strip("/").split("/")
        here = f"http://{self.headers['Host']}"
        if words == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else ""
            if self.headers.get("Authorization") != "Bearer right":
                self.answer({"error": "Invalid username or password."}, 401)
            elif name in store.commits:
                self.answer({"error": "already there", "url": f"{here}/{name}"}, 409)
            else:
                store.commits[name] = []
                self.answer({"url": f"{here}/{name}", "name": name})
        elif words == ["api", "validate-yaml"]:
            self.answer({"errors": [], "warnings": []})
        elif "preupload" in words:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": modes})
        elif words[-2:] == ["objects", "batch"]:
            objects = [
                {**one, "actions": {"upload": {"href": f"{here}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif "commit" in words:
            name = "/".join(words[2:4])
            number = store.commit(name, [json.loads(line) for line in body.splitlines()])
            url = f"{here}/{name}/commit/{number}"
            self.answer({"commitUrl": url, "commitOid": number, "success": True})
        else:
            self.missing("EntryNotFound")

    def do_PUT(self) -> None:
        body = self.read()
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != oid:
            self.answer({"error": "another file"}, 400)
            return
        self.store.blobs[oid] = body
        self.answer({})

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path).strip("/")
        words = path.split("/")
        if words[:2] == ["api", "models"] and len(words) >= 4:
            name = "/".join(words[2:4])
            revision = words[5] if len(words) > 5 else "main"
            found = self.store.at(name, revision)
            if found is None:
                self.missing("RevisionNotFound" if name in self.store.commits else "RepoNotFound")
            elif "tree" in words:
                self.answer([self._entry(n, b) for n, b in found[1].items()])
            else:
                siblings = [{"rfilename": n} for n in found[1]]
                about = {"id": name, "modelId": name, "sha": found[0], "siblings": siblings}
                self.answer({**about, "private": False, "tags": [], "downloads": 0, "likes": 0})
        elif "resolve" in words:
            name, revision, file = "/".join(words[:2]), words[3], "/".join(words[4:])
            found = self.store.at(name, revision)
            if found is None or file not in found[1]:
                self.missing("EntryNotFound")
                return
            number, files = found
            etag = hashlib.sha256(files[file]).hexdigest()
            body = self.store.tampered.get(file, files[file])
            self.answer(body, ETag=f'"{etag}"', X_Repo_Commit=number, Accept_Ranges="none")
        else:
            self.missing()

    do_HEAD = do_GET

    def _entry(self, name: str, body: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "type": "file",
            "path": name,
            "size": len(body),
            "oid": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest(),
        }
        if name.endswith(".safetensors"):
            digest = hashlib.sha256(body).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(body), "pointerSize": 134}
        return entry


@contextmanager
def hub() -> Iterator[tuple[str, Store]]:
    """A running server: its address and what it stores."""
    store = Store()
    kind = type("Bound", (Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
