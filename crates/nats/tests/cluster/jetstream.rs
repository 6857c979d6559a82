//! Changes that tests make to the streams and objects of a cluster without the knowledge of its nodes.

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

    /// The first sequence in the log of a partition.
    pub fn first(&self, partition: u64) -> u64 {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let mut stream = self.context.get_stream(name).await.expect("the log");
            stream.info().await.expect("its state").state.first_sequence
        })
    }

    /// Purges the batches of a partition before this sequence.
    pub fn purge(&self, partition: u64, before: u64) {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let stream = self.context.get_stream(name).await.expect("the log");
            let purge = stream.purge().sequence(before);
            purge.await.expect("it is purged");
        });
    }

    /// Writes a message to the log of a partition, as anybody with the permission to publish can.
    pub fn write(&self, partition: u64, bytes: &[u8]) {
        self.runtime.block_on(async {
            let subject = format!("crore.test.log.{partition}");
            let sent = self.context.publish(subject, bytes.to_vec().into()).await;
            sent.expect("it is sent").await.expect("it is stored");
        });
    }

    /// Writes messages that are not batches: `count` messages of this many bytes to each of the first `partitions` logs. Returns how many
    /// were stored.
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

    /// Changes the configuration of a stream.
    pub fn edit(&self, config: Config) {
        let updated = self.runtime.block_on(self.context.update_stream(config));
        updated.expect("it is changed");
    }

    /// The configuration of a partition's stream.
    pub fn config(&self, partition: u64) -> Config {
        self.runtime.block_on(async {
            let name = format!("CRORE_TEST_{partition}");
            let stream = self.context.get_stream(name).await.expect("the log");
            stream.cached_info().config.clone()
        })
    }

    /// Removes a stream.
    pub fn remove(&self, name: &str) {
        let removed = self.runtime.block_on(self.context.delete_stream(name));
        removed.expect("it is removed");
    }

    /// Creates a stream.
    pub fn make(&self, config: Config) {
        let made = self.runtime.block_on(self.context.create_stream(config));
        made.expect("it is made");
    }

    /// Replaces a stream with an empty one of the same name.
    pub fn make_anew(&self, config: Config) {
        self.remove(&config.name);
        self.make(config);
    }

    /// A value in the key-value bucket of the cluster.
    pub fn get(&self, key: &str) -> serde_json::Value {
        self.runtime.block_on(async {
            let bucket = self.context.get_key_value("CRORE_TEST").await;
            let value = bucket.expect("the bucket").get(key).await;
            let value = value.expect("an answer").expect("a value");
            serde_json::from_slice(&value).expect("JSON")
        })
    }

    /// Writes a value to the bucket.
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
        // Each list leaves a consumer for half a minute, and NATS accepts only a thousand of them.
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

    /// Replaces the bytes of an object.
    pub fn replace(&self, object: &ObjectInfo, mut bytes: &[u8]) {
        self.runtime.block_on(async {
            let bucket = self.context.get_object_store("CRORE_TEST").await;
            let of = ObjectMetadata::from(object.clone());
            let put = bucket.expect("the bucket").put(of, &mut bytes).await;
            put.expect("it is there");
        });
    }

    /// Leaves a chunk of an object that was never completed.
    pub fn leave_chunks(&self) {
        self.runtime.block_on(async {
            let subject = "$O.CRORE_TEST.C.ofOneThatDied";
            let sent = self.context.publish(subject, vec![7; 1000].into()).await;
            sent.expect("it is sent").await.expect("it is stored");
        });
    }
}

/// The sequence of the last batch that a checkpoint contains.
pub fn sequence(object: &ObjectInfo) -> u64 {
    let number = object.name.split('/').nth(1);
    number.and_then(|it| it.parse().ok()).expect("a place")
}
