/** The reader of event streams, against the format of the HTML standard (9.2.6). */

import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser, type StreamEvent } from "../src/stream";

const STREAM = [
  ": a comment\n\n",
  "retry: 2000\n\n",
  "id: 1-1\ndata: one\n\n",
  "data: two\r\ndata:  lines\r\n\r\n",
  "event: score\rdata:{}\r\r",
  "id: 1-3\n\n",
  "data\n\n",
  "data: \u2713 end\nunknown: x\n\n",
].join("");

const EXPECTED: StreamEvent[] = [
  { event: "message", data: "one", id: "1-1" },
  { event: "message", data: "two\n lines", id: "1-1" },
  { event: "score", data: "{}", id: "1-1" },
  { event: "message", data: "", id: "1-3" },
  { event: "message", data: "\u2713 end", id: "1-3" },
];

test("a stream gives its events, whole or torn at any place", () => {
  for (let at = 0; at <= STREAM.length; at++) {
    const parser = new EventParser();
    const events = [...parser.take(STREAM.slice(0, at)), ...parser.take(STREAM.slice(at))];
    assert.deepEqual(events, EXPECTED, `torn at ${at}`);
  }
  const parser = new EventParser();
  assert.deepEqual([...STREAM].flatMap((one) => parser.take(one)), EXPECTED);
});

test("an id counts without data, once its empty line has come", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.take("id: 1-0\n"), []);
  assert.equal(parser.lastId, "");
  assert.deepEqual(parser.take("\n"), []);
  assert.equal(parser.lastId, "1-0");
});

test("what has no empty line behind it is no event yet", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.take("data: half\n"), []);
  assert.equal(parser.take("\n").length, 1);
});
