/** The samples that the server has kept, before those that the page has seen. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { joined, type History } from "../src/history";

const history = (time: number[]): History => {
  const names = ["websocket", "sse", "longpoll", "mqtt", "in", "out", "p50", "p99", "p999"];
  return Object.fromEntries([["time", time], ...names.map((name) => [name, time.map((at) => at * 10)])]) as History;
};

test("only older samples are put before the first report", () => {
  const both = joined(history([1, 2, 3, 4]), history([3, 5]));
  assert.deepEqual(both.time, [1, 2, 3, 5]);
  assert.deepEqual(both.p99, [10, 20, 30, 50]);
  assert.deepEqual(joined(history([1, 2]), history([])).time, [1, 2]);
});

test("no more is kept than a quarter of an hour", () => {
  const many = Array.from({ length: 1_000 }, (_, at) => at);
  const both = joined(history(many), history([1_000]));
  assert.equal(both.time.length, 900);
  assert.equal(both.time.at(-1), 1_000);
});
