/** Filters of other servers. The cases are those of `crates/wire/tests/topic.rs`. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { meantFilter } from "../src/filters";

test("filters of other servers are recognised", () => {
  const cases: [string, string | null][] = [
    ["news.>", "news/#"],
    ["news.*.x", "news/+/x"],
    ["news/*", "news/+"],
    ["news/**", "news/#"],
    ["*", "+"],
    [">", "#"],
    ["a.b/>", "a.b/#"],
  ];
  for (const [foreign, meant] of cases) assert.equal(meantFilter(foreign), meant, foreign);
  for (const own of ["", "news", "news/+", "#", "a.b", "a*", "x>y", "a.*x/b", "a/>/b"]) assert.equal(meantFilter(own), null, own);
});
