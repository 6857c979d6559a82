/** Answers that come in another order than they were asked for. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { inOrder } from "../src/poll";

test("an older answer does not come after a newer one", () => {
  const number = inOrder();
  const [first, second, third] = [number(), number(), number()];
  assert.equal(second(), true);
  assert.equal(first(), false);
  assert.equal(third(), true);
  assert.equal(second(), false);
});
