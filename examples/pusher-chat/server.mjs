// The backend of the chat: it serves the page, signs who may subscribe, and publishes messages. A Laravel application does the same.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

// The addresses of Crore's data port and admin port, the port of this server, and where the packages are.
const { CRORE = "127.0.0.1:8800", CRORE_ADMIN = "127.0.0.1:8801", PORT = "3000", SECRET_FILE = "secret.txt" } = process.env;
const require = createRequire(process.env.PACKAGES ?? import.meta.url);
const Pusher = require("pusher");

const [host, port] = CRORE_ADMIN.split(":");
const secret = readFileSync(SECRET_FILE, "utf8").trim();
const pusher = new Pusher({ appId: "chat", key: "chat-key", secret, host, port, useTLS: false });

const page = readFileSync(new URL("index.html", import.meta.url), "utf8").replace("127.0.0.1:8800", CRORE);
const files = {
  "/": ["text/html; charset=utf-8", page],
  "/echo.js": ["text/javascript", readFileSync(join(dirname(require.resolve("laravel-echo")), "echo.js"))],
  "/pusher.js": ["text/javascript", readFileSync(require.resolve("pusher-js/dist/web/pusher.min.js"))],
};

const body = async (request) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  return new URLSearchParams(Buffer.concat(parts).toString());
};

const server = createServer(async (request, response) => {
  try {
    const { pathname } = new URL(request.url, "http://localhost");
    // A real application knows the user by its session, and not by what the page says.
    const user = String(request.headers["x-user"] ?? "");
    if (request.method === "POST" && pathname === "/broadcasting/auth") {
      const form = await body(request);
      if (user === "" || form.get("channel_name") !== "presence-lobby") return response.writeHead(403).end();
      const data = { user_id: user, user_info: { name: user } };
      const signed = pusher.authorizeChannel(form.get("socket_id"), "presence-lobby", data);
      return response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(signed));
    }
    if (request.method === "POST" && pathname === "/messages") {
      const form = await body(request);
      await pusher.trigger("presence-lobby", "message", { user, text: form.get("text") });
      return response.writeHead(204).end();
    }
    const [type, content] = files[pathname] ?? [];
    if (content === undefined) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": type }).end(content);
  } catch (error) {
    console.error(error);
    response.writeHead(500).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => console.log(`open http://127.0.0.1:${server.address().port}/#ann`));
