/** What a connection subscribes to. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Connection } from "../src/api";
import { subscriptionsOf } from "../src/subscriptions";

test("a subscription of MQTT has its QoS, and its group where it is shared", () => {
  const subscriptions = [
    { filter: "news", qos: 2, share: null },
    { filter: "doors/+", qos: 1, share: null },
    { filter: "$share/workers/jobs", qos: 0, share: "workers" },
  ];
  const mqtt = { subscriptions } as Connection["mqtt"];
  assert.deepEqual(subscriptionsOf({ topics: ["news"], filters: ["doors/+"], mqtt }), [
    { name: "news", isTopic: true, kind: "topic", qos: 2 },
    { name: "doors/+", isTopic: false, kind: "filter", qos: 1 },
    { name: "$share/workers/jobs", isTopic: false, kind: "shared in the group workers", qos: 0 },
  ]);
});

test("a subscription of another protocol has no QoS", () => {
  assert.deepEqual(subscriptionsOf({ topics: ["a"], filters: ["b/#"], mqtt: null }), [
    { name: "a", isTopic: true, kind: "topic", qos: null },
    { name: "b/#", isTopic: false, kind: "filter", qos: null },
  ]);
});
