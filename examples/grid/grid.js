// The grid of 2012 on Crore, with nothing but what a browser has.
//
//   who is here   the topic grid/here keeps the newest message of each key; a key is a cell. Everybody writes down their
//                 cell there, again every 15 s, worth sending for 40 s. So a new page gets all who are here at once, and who
//                 vanished is forgotten by itself.
//   talk          each cell is a topic, grid/cell/X-Y. A page subscribes to its own cell alone; who speaks publishes to
//                 the eight around. Words pass from neighbour to neighbour as they did then.
//   the count     how many subscribers grid/here has, asked of the server.
//
// One EventSource carries both topics; it reconnects and resumes by itself. Publishing is a POST.

const SERVER = new URLSearchParams(location.search).get("server") ?? "http://127.0.0.1:8800";
const WIDTH = 16;
const HEIGHT = 10;
const REFRESH_S = 15;
const WORTH_S = 40;
const GREET_S = 7;
const BUBBLE_MS = 4000;
const GREETINGS = ["hello", "good day", "who is there?", "anybody out there?", "nice cell", "still here", "and you?"];

const $ = (id) => document.getElementById(id);
const random = (below) => Math.floor(Math.random() * below);
const me = { id: Math.random().toString(36).slice(2, 10), sprite: random(2 ** 30), cell: "" };

/** cell name -> { element, id, sprite, until_ms } */
const cells = new Map();

for (let y = 0; y < HEIGHT; y++) {
  for (let x = 0; x < WIDTH; x++) {
    const element = document.createElement("div");
    element.className = `cell${x < 3 ? " left" : x >= WIDTH - 3 ? " right" : ""}`;
    $("grid").append(element);
    cells.set(`${x}-${y}`, { element, id: "", sprite: 0, until_ms: 0 });
  }
}

function neighbours(cell) {
  const [x, y] = cell.split("-").map(Number);
  const around = [];
  for (let dy = -1; dy <= 1; dy++) {
    for (let dx = -1; dx <= 1; dx++) {
      if (dx !== 0 || dy !== 0) around.push(`${x + dx}-${y + dy}`);
    }
  }
  return around.filter((name) => cells.has(name));
}

/** A face of 8 by 8 dots, alike on both sides, drawn from a number. */
function draw(cell, sprite) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 8;
  const paint = canvas.getContext("2d");
  paint.fillStyle = `hsl(${sprite % 360} 65% 52%)`;
  let bits = sprite;
  for (let y = 0; y < 8; y++) {
    for (let x = 0; x < 4; x++) {
      bits = (Math.imul(bits, 1103515245) + 12345) >>> 0;
      if (x + y < 2 || (bits >>> 16) % 3 === 0) continue;
      paint.fillRect(x, y, 1, 1);
      paint.fillRect(7 - x, y, 1, 1);
    }
  }
  paint.fillStyle = "#fff";
  paint.fillRect(2, 3, 1, 1);
  paint.fillRect(5, 3, 1, 1);
  cell.element.replaceChildren(canvas);
}

function show(name, visitor) {
  const cell = cells.get(name);
  if (cell === undefined) return;
  if (visitor === null) {
    cell.id = "";
    cell.element.replaceChildren();
    return;
  }
  cell.until_ms = Date.now() + WORTH_S * 1000;
  if (cell.id === visitor.id) return;
  cell.id = visitor.id;
  draw(cell, Number(visitor.sprite) || 0);
}

function bubble(name, words) {
  const cell = cells.get(name);
  if (cell === undefined) return;
  cell.element.querySelector(".bubble")?.remove();
  const element = document.createElement("div");
  element.className = "bubble";
  element.textContent = words;
  cell.element.append(element);
  setTimeout(() => element.remove(), BUBBLE_MS);
}

async function publish(topic, value, headers = {}) {
  await fetch(`${SERVER}/pub/${topic}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(value),
    keepalive: true, // also while the page goes away
  });
}

const here = (ttl_s = WORTH_S) =>
  publish("grid/here", { id: me.id, sprite: ttl_s > 0 ? me.sprite : null }, { "Crore-Key": me.cell, "Crore-TTL": String(ttl_s) });

async function say(words) {
  bubble(me.cell, words);
  await Promise.all(neighbours(me.cell).filter((name) => cells.get(name).id !== "").map((name) => publish(`grid/cell/${name}`, { from: me.cell, words })));
}

function take(text) {
  const { topic, key, data } = JSON.parse(text);
  const value = JSON.parse(data);
  if (topic === "grid/here") {
    show(key, value.sprite === null ? null : value);
    // Two chose one cell: the smaller id moves on, where there is room.
    const twice = key === me.cell && value.id > me.id && value.sprite !== null;
    if (twice && [...cells.values()].some((cell) => cell.id === "")) void settle();
    return;
  }
  const words = String(value.words).slice(0, 80);
  bubble(value.from, words);
  const line = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  line.append(time, ` ${value.from}: ${words}`);
  $("heard").prepend(line);
  while ($("heard").children.length > 8) $("heard").lastChild.remove();
}

let source = null;

/** Takes a free cell, subscribes to it and says so. */
async function settle() {
  const free = [...cells].filter(([, cell]) => cell.id === "").map(([name]) => name);
  // Beside somebody, where there is somebody: neighbours hear each other.
  const beside = free.filter((name) => neighbours(name).some((other) => cells.get(other).id !== ""));
  const choice = beside.length > 0 ? beside : free;
  me.cell = choice[random(choice.length)] ?? `${random(WIDTH)}-${random(HEIGHT)}`;
  for (const [name, cell] of cells) {
    cell.element.classList.toggle("me", name === me.cell);
    cell.element.classList.toggle("near", neighbours(me.cell).includes(name));
  }
  source?.close();
  source = new EventSource(`${SERVER}/sub?topic=grid/here&topic=grid/cell/${me.cell}&envelope=json`);
  source.onmessage = (event) => take(event.data);
  source.onopen = () => ($("link").textContent = "");
  source.onerror = () => ($("link").textContent = "disconnected, trying again");
  await here();
}

/** Who is here, before a cell is chosen. */
async function look() {
  const stream = new EventSource(`${SERVER}/sub?topic=grid/here&envelope=json`);
  stream.onmessage = (event) => take(event.data);
  await new Promise((done) => {
    stream.onopen = () => setTimeout(done, 300); // the snapshot follows the head at once
    setTimeout(done, 3000);
  });
  stream.close();
}

async function count() {
  const response = await fetch(`${SERVER}/pub/grid/here`, { headers: { Accept: "application/json" }, cache: "no-store" });
  $("count").textContent = response.ok ? (await response.json()).subscribers.toLocaleString() : "0";
}

const every = (seconds, what) => setInterval(() => Promise.resolve(what()).catch(() => {}), seconds * 1000);

$("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = $("words").value.trim();
  if (words !== "") void say(words);
  $("words").value = "";
});
addEventListener("pagehide", () => void here(0));

await look();
await settle();
void count();
every(2, count);
every(REFRESH_S, here.bind(null, WORTH_S));
every(GREET_S + random(3), () => $("chat").checked && say(GREETINGS[random(GREETINGS.length)]));
every(5, () => {
  for (const [name, cell] of cells) if (cell.id !== "" && cell.until_ms < Date.now() && name !== me.cell) show(name, null);
});
