/** Numbers as people read them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { count, rate } from "../src/format";

test("a count has no parts", () => {
  const cases: [number, string][] = [
    [0, "0"],
    [2.5, "3"],
    [12_345.6, "12,346"],
    [1_234_567, "1.23 M"],
  ];
  for (const [value, text] of cases) assert.equal(count(value), text);
});

test("a rate has a tenth where it is small, and none where that says nothing", () => {
  const cases: [number, string][] = [
    [0, "0"],
    [0.25, "0.3"],
    [2.998, "3"],
    [9.94, "9.9"],
    [24.9, "25"],
  ];
  for (const [value, text] of cases) assert.equal(rate(value), text);
  assert.equal(rate(null), "\u2013");
});
