// HTTP/2 with Node's `http2`: publishes, reads the history, then follows a topic over as many connections as it takes. The server's URL and
// the file with its root in, JSON lines out.
import { readFileSync } from "node:fs";
import { connect } from "node:http2";

const say = (what) => console.log(JSON.stringify(what));
process.stdin.resume().on("end", () => process.exit(0));
const [url, root] = process.argv.slice(2);

/** A connection. What breaks it is told to its streams, too. */
const open = () => connect(url, root ? { ca: readFileSync(root) } : {}).on("error", () => {});

const request = (session, headers, body) =>
  new Promise((resolve, reject) => {
    const stream = session.request(headers);
    let status;
    let text = "";
    stream.setEncoding("utf8");
    stream.on("response", (fields) => (status = fields[":status"]));
    stream.on("data", (part) => (text += part));
    stream.on("end", () => resolve({ status, text }));
    stream.on("error", reject);
    stream.end(body);
  });

let position;
const follow = () => {
  const session = open();
  const where = position === undefined ? { ":path": "/sub/news?since=oldest" } : { ":path": "/sub/news", "last-event-id": position };
  const stream = session.request({ ...where, accept: "text/event-stream" });
  stream.setEncoding("utf8");
  let text = "";
  stream.on("data", (part) => {
    text += part;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const field = (name) => new RegExp(`^${name}: (.*)$`, "m").exec(block)?.[1];
      const data = field("data");
      if (data !== undefined) {
        position = field("id");
        say({ kind: "message", id: position, data });
      }
    }
  });
  stream.on("error", () => {});
  stream.on("close", () => {
    session.destroy();
    setTimeout(follow, 50);
  });
};

const session = open();
const published = await request(session, { ":method": "POST", ":path": "/pub/news" }, "one");
say({ kind: "published", status: published.status, version: session.alpnProtocol });
const history = await request(session, { ":path": "/history/news" });
say({ kind: "history", data: JSON.parse(history.text).map((message) => message.data) });
session.close();
follow();
