// An API like that of GitHub. Argument: a directory with the certificate, the file `values` and the directory `pages`.
//
// Port 80 is HTTP/1.1; port 443 is TLS with HTTP/1.1 and HTTP/2. Without a token the status is 401, except for paths
// that start with `/open`. The log has one line of JSON for each complete request.

import fs from "node:fs";
import http from "node:http";
import http2 from "node:http2";

const directory = process.argv[2];
const read = (name) => fs.readFileSync(`${directory}/${name}`);
const { token, key } = JSON.parse(read("values"));
const log = fs.openSync(`${directory}/log`, "a");

function isAuthorized(headers, url) {
    const [scheme, credentials] = (headers.authorization ?? "").split(" ");
    switch (scheme.toLowerCase()) {
        case "bearer":
        case "token":
            return credentials === token;
        case "basic":
            return Buffer.from(credentials, "base64").toString() === `x-access-token:${token}`;
        default:
            return headers["x-api-key"] === key || url.searchParams.get("key") === key;
    }
}

function respond(request, response, body) {
    const headers = { ...request.headers };
    const host = headers[":authority"] ?? headers.host;
    const url = new URL(request.url, `http://${host}`);
    const seen = { host, port: request.socket.localPort, version: request.httpVersion, method: request.method };
    fs.writeSync(log, `${JSON.stringify({ ...seen, url: request.url, headers, body })}\n`);
    const send = (status, value) => {
        response.writeHead(status, { "content-type": "application/json", "www-authenticate": 'Basic realm="API"' });
        response.end(JSON.stringify(value));
    };
    if (!url.pathname.startsWith("/open") && !isAuthorized(headers, url)) {
        return send(401, { message: "Bad credentials" });
    }
    switch (url.pathname) {
        case "/user":
            return send(200, { login: "octocat" });
        case "/echo":
            return send(200, { headers, url: request.url, token: [token, key].map((value) => btoa(value)) });
        // Never ends, so that the client stays in the middle of the response.
        case "/hold":
            response.writeHead(200, { "content-type": "text/plain", "x-echo": headers.authorization ?? "" });
            return response.write(`${JSON.stringify(headers)}\n`);
        case "/search/repositories":
            return send(200, { total_count: 4711, incomplete_results: false, items: [] });
    }
    const file = `${directory}/pages${url.pathname}`;
    if (fs.existsSync(file) && fs.statSync(file).isFile()) {
        response.writeHead(200);
        return response.end(fs.readFileSync(file));
    }
    send(url.pathname.startsWith("/open") ? 200 : 404, {});
}

function serve(request, response) {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
        const body = Buffer.concat(parts);
        // A stream of HTTP/2 that is reset ends too.
        if (body.length === Number(request.headers["content-length"] ?? body.length)) {
            respond(request, response, body.toString());
        }
    });
    request.on("error", () => {});
    response.on("error", () => {});
}

const tls = { cert: read("server.pem"), key: read("server.key"), allowHTTP1: true };
http.createServer(serve).listen(80, () => {
    http2.createSecureServer(tls, serve).listen(443, () => console.log("ready"));
});
