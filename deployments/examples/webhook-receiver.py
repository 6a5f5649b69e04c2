#!/usr/bin/env python3
"""Receives notifications of Windlass, checks their signatures and prints them.

    WEBHOOK_SECRET=whsec_... python3 webhook-receiver.py 8090

It needs nothing but Python 3. See docs/guides/notifications.md.
"""
import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
MAX_BODY = 64 * 1024
seen = set()  # in memory, for the example: keep ids where a restart does not lose them


def is_valid(headers, body):
    """Reports whether the call was signed with the secret within the last five minutes."""
    identity, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > 300:
        return False
    digest = hmac.new(KEY, f"{identity}.{at}.".encode() + body, hashlib.sha256).digest()
    want = "v1," + base64.b64encode(digest).decode()
    # During a rotation there are two signatures.
    return any(hmac.compare_digest(want, got) for got in headers.get("webhook-signature", "").split())


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(min(length, MAX_BODY))
        valid = length <= MAX_BODY and is_valid(self.headers, body)
        identity = self.headers.get("webhook-id", "")
        if valid and identity not in seen:  # a repeated call has the same id
            seen.add(identity)
            event = json.loads(body)
            print(event["time"], event["type"], event.get("subject", ""), event["data"]["why"], flush=True)
        self.send_response(204 if valid else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
print(f"listening at http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
