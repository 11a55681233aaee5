"""The services of a test network. Arguments: the directory of the pages, certificates and the log.

Ports 80 and 8080 are HTTP, 443 and 8443 HTTPS, 7000 sends back each line. The log has a line for each connection and
each request, so that a test can see what has arrived.
"""

import http.server
import os
import socketserver
import ssl
import sys
import threading

DIRECTORY = sys.argv[1]
LOG = os.open(f"{DIRECTORY}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def log(line):
    os.write(LOG, f"{line}\n".encode())


class Pages(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=f"{DIRECTORY}/pages")

    def log_request(self, *_):
        log(f"request {self.server.server_port} {self.headers['Host']} {self.path}")

    def log_message(self, *_):
        pass


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 64
    tls = None

    def __init__(self, port, handler):
        self.server_port = port
        super().__init__(("0.0.0.0", port), handler)

    def verify_request(self, *_):
        log(f"connection {self.server_port}")
        return True

    def finish_request(self, request, address):
        if self.tls:
            request.settimeout(60)
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, address)
        if self.tls:
            request.unwrap()

    def handle_error(self, *_):
        pass


tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(f"{DIRECTORY}/server.pem", f"{DIRECTORY}/server.key")
for port, handler in [(80, Pages), (8080, Pages), (443, Pages), (8443, Pages), (7000, Lines)]:
    server = Server(port, handler)
    if port in (443, 8443):
        server.tls = tls
    threading.Thread(target=server.serve_forever).start()
print("ready", flush=True)
