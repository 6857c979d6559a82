//! Changes that tests make to the streams and objects of a cluster behind the nodes' backs.

#![allow(dead_code, reason = "no test program needs all of it")]

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::object_store::{ObjectInfo, ObjectMetadata};
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Runtime};

use crate::servers::Servers;

pub struct JetStream {
    runtime: Runtime,
    context: Context,
}

impl JetStream {
    pub fn of(servers: &Servers) -> JetStream {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let context = runtime.block_on(async {
            let client = async_nats::connect(servers.urls()).await.expect("a client");
            async_nats::jetstream::new(client)
        });
        JetStream { runtime, context }
    }

    /// The first place that the log of a partition has.
    pub fn first(&self, partition: u64) -> u64 {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let mut stream = self.context.get_stream(name).await.expect("the log");
            stream.info().await.expect("its state").state.first_sequence
        })
    }

    /// Purges the log of a partition before this place.
    pub fn purge(&self, partition: u64, before: u64) {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let stream = self.context.get_stream(name).await.expect("the log");
            let purge = stream.purge().sequence(before);
            purge.await.expect("it is purged");
        });
    }

    /// Writes to the log of a partition, as whoever has the right to.
    pub fn write(&self, partition: u64, bytes: &[u8]) {
        self.runtime.block_on(async {
            let subject = format!("crore.test.log.{partition}");
            let sent = self.context.publish(subject, bytes.to_vec().into()).await;
            sent.expect("it is sent").await.expect("it is stored");
        });
    }

    /// Writes messages of so many bytes to the logs of the first partitions, each to all of them, that are no batches. Returns how many were stored.
    pub fn fill(&self, partitions: u64, count: usize, bytes: usize) -> usize {
        let bytes = vec![7; bytes];
        self.runtime.block_on(async {
            let mut answers = Vec::new();
            for _ in 0..count {
                for partition in 0..partitions {
                    let subject = format!("crore.test.log.{partition}");
                    let sent = self.context.publish(subject, bytes.clone().into()).await;
                    answers.push(sent.expect("it is sent"));
                }
            }
            let mut stored = 0;
            for answer in answers {
                stored += usize::from(answer.await.is_ok());
            }
            stored
        })
    }

    /// Changes how the log of a partition is made.
    pub fn edit(&self, config: Config) {
        let updated = self.runtime.block_on(self.context.update_stream(config));
        updated.expect("it is changed");
    }

    /// How the log of a partition is made.
    pub fn config(&self, partition: u64) -> Config {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let stream = self.context.get_stream(name).await.expect("the log");
            stream.cached_info().config.clone()
        })
    }

    /// Removes a log.
    pub fn remove(&self, name: &str) {
        let removed = self.runtime.block_on(self.context.delete_stream(name));
        removed.expect("it is removed");
    }

    /// Makes a stream.
    pub fn make(&self, config: Config) {
        let made = self.runtime.block_on(self.context.create_stream(config));
        made.expect("it is made");
    }

    /// An empty log in the place of the one with this name.
    pub fn make_anew(&self, config: Config) {
        self.remove(&config.name);
        self.make(config);
    }

    /// A value of the bucket.
    pub fn get(&self, key: &str) -> serde_json::Value {
        self.runtime.block_on(async {
            let bucket = self.context.get_key_value("CRORE_TEST").await;
            let value = bucket.expect("the bucket").get(key).await;
            let value = value.expect("an answer").expect("a value");
            serde_json::from_slice(&value).expect("JSON")
        })
    }

    /// Writes one.
    pub fn put(&self, key: &str, value: &serde_json::Value) {
        self.runtime.block_on(async {
            let bucket = self.context.get_key_value("CRORE_TEST").await;
            let bucket = bucket.expect("the bucket");
            let put = bucket.put(key, value.to_string().into()).await;
            put.expect("it is written");
        });
    }

    /// The checkpoints of a partition, the newest first.
    pub fn checkpoints(&self, partition: u64) -> Vec<ObjectInfo> {
        // Each list leaves a consumer for half a minute, and NATS takes a thousand of them.
        std::thread::sleep(Duration::from_millis(50));
        let mut found: Vec<ObjectInfo> = self.runtime.block_on(async {
            let bucket = self.context.get_object_store("CRORE_TEST").await;
            let bucket = bucket.expect("the bucket");
            let list = bucket.list().await.expect("a list");
            list.map(|object| object.expect("an object"))
                .collect()
                .await
        });
        found.retain(|it| it.name.starts_with(&format!("{partition}/")));
        found.sort_by_key(|it| std::cmp::Reverse(sequence(it)));
        found
    }

    /// Removes the last chunk of an object.
    pub fn damage(&self, object: &ObjectInfo) {
        self.runtime.block_on(async {
            let stream = self.context.get_stream("OBJ_CRORE_TEST").await;
            let stream = stream.expect("the bucket");
            let subject = format!("$O.CRORE_TEST.C.{}", object.nuid);
            let chunk = stream.get_last_raw_message_by_subject(&subject).await;
            let place = chunk.expect("a chunk").sequence;
            stream.delete_message(place).await.expect("it is gone");
        });
    }

    /// Removes an object.
    pub fn delete(&self, object: &ObjectInfo) {
        self.runtime.block_on(async {
            let bucket = self.context.get_object_store("CRORE_TEST").await;
            let deleted = bucket.expect("the bucket").delete(&object.name).await;
            deleted.expect("it is gone");
        });
    }

    /// Has other bytes in the place of an object.
    pub fn replace(&self, object: &ObjectInfo, mut bytes: &[u8]) {
        self.runtime.block_on(async {
            let bucket = self.context.get_object_store("CRORE_TEST").await;
            let of = ObjectMetadata::from(object.clone());
            let put = bucket.expect("the bucket").put(of, &mut bytes).await;
            put.expect("it is there");
        });
    }

    /// Chunks of an object that was never ended.
    pub fn leave_chunks(&self) {
        self.runtime.block_on(async {
            let subject = "$O.CRORE_TEST.C.ofOneThatDied";
            let sent = self.context.publish(subject, vec![7; 1000].into()).await;
            sent.expect("it is sent").await.expect("it is stored");
        });
    }
}

/// The last batch that a checkpoint contains.
pub fn sequence(object: &ObjectInfo) -> u64 {
    let number = object.name.split('/').nth(1);
    number.and_then(|it| it.parse().ok()).expect("a place")
}
