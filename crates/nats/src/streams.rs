//! The streams that store the log, one for each partition: creates missing ones, and checks the others.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{
    self, Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{Context, ErrorCode, context::GetStreamErrorKind};

use crate::error::{Error, chain};
use crate::identity::ClusterIdentity;
use crate::settings::{Settings, refusal};

/// Seconds since 1970 by the clock of the server that leads the first stream.
pub async fn query_unix_s(context: &Context, settings: &Settings) -> Result<u64, Error> {
    #[derive(serde::Deserialize)]
    struct StreamInfo {
        ts: String,
    }
    let name = settings.stream_name(0);
    let failed =
        |why: String| Error::transient(format!("stream {name} does not tell the time: {why}"));
    let subject = format!("STREAM.INFO.{name}");
    let answer = context.request(subject, &serde_json::json!({})).await;
    let info: StreamInfo = answer.map_err(|error| failed(chain(&error)))?;
    let time = async_nats::datetime::parse_rfc3339(&info.ts);
    let time = time.map_err(|error| failed(error.to_string()))?;
    u64::try_from(time.unix_timestamp()).map_err(|_| failed(info.ts))
}

/// The oldest usable version of nats-server. Older versions did not sync a purge by sequence, even with `sync_interval: always`.
pub const VERSION_MIN: (u64, u64, u64) = (2, 15, 2);
/// The minimum of `max_payload` of NATS: a message must hold a batch with the longest record.
pub const MESSAGE_BYTES_MIN: usize = 2 << 20;
/// The key of the cluster's id in a stream's metadata.
const CLUSTER_ID_KEY: &str = "crore.cluster";

/// A stream accepts this many times its share of `history_bytes`, so that the streams do not fill the disk. When the batches exceed the share, the steward
/// (the node that writes the partition's checkpoints) purges batches that checkpoints contain. NATS itself must not drop batches: a checkpoint may not
/// contain them yet.
pub const MAX_BYTES_FACTOR: u64 = 2;
/// A stream has space for at least this many of the longest messages: the last batch of a checkpoint stays, and new batches must fit after
/// it.
const MESSAGES_MIN: u64 = 4;

/// Bytes that NATS may send to a consumer before the consumer's next request. More than the longest message.
const UNREQUESTED_BYTES_MAX: usize = 4 << 20;
/// How often NATS sends a heartbeat to an idle consumer. After two missing heartbeats the consumer counts as gone.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// NATS removes a consumer that nobody has read for this time.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(30);

/// The remedy for a wrong setting that NATS cannot change.
const RECREATE_REMEDY: &str = "remove the stream, or choose another cluster.name";

/// A usable stream.
pub type Stream = stream::Stream;

/// Checks the version of the server.
pub fn check_version(version: &str) -> Result<(), Error> {
    let plain = version.split(['-', '+']).next().unwrap_or_default();
    let mut parts = plain.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next_part = || parts.next().unwrap_or(0);
    let found = (next_part(), next_part(), next_part());
    if found >= VERSION_MIN {
        return Ok(());
    }
    let (major, minor, patch) = VERSION_MIN;
    Err(Error::lasting(format!(
        "this server of NATS is version {version}, and at least {major}.{minor}.{patch} is needed (earlier ones may lose messages at a power cut); install a newer nats-server"
    )))
}

/// Checks the server's `max_payload`.
pub fn check_payload(bytes: usize) -> Result<(), Error> {
    if bytes >= MESSAGE_BYTES_MIN {
        return Ok(());
    }
    Err(Error::lasting(format!(
        "max_payload of NATS is {bytes} bytes, and at least {MESSAGE_BYTES_MIN} are needed; write `max_payload: 2MB` in the configuration of each nats-server"
    )))
}

/// The minimum of `max_bytes` of a stream with this `max_payload`.
fn stream_bytes_min(max_payload: usize) -> i64 {
    i64::try_from(max_payload as u64 * MESSAGES_MIN).unwrap_or(i64::MAX)
}

fn stream_config(
    settings: &Settings,
    identity: ClusterIdentity,
    partition: u16,
    max_payload: usize,
) -> Config {
    let share = settings.history_bytes / u64::from(identity.partitions.max(1)) * MAX_BYTES_FACTOR;
    Config {
        name: settings.stream_name(partition),
        description: Some(format!(
            "Crore cluster `{}`, partition {partition}",
            settings.name
        )),
        subjects: vec![settings.subject(partition)],
        storage: StorageType::File,
        num_replicas: settings.replicas,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        max_bytes: match share {
            0 => -1,
            bytes => (i64::try_from(bytes).unwrap_or(i64::MAX)).max(stream_bytes_min(max_payload)),
        },
        max_age: Duration::ZERO,
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        max_message_size: -1,
        metadata: HashMap::from([(CLUSTER_ID_KEY.to_string(), format!("{:016x}", identity.id))]),
        ..Default::default()
    }
}

/// Opens and checks the stream of a partition. Creates a missing stream, unless the streams were created before: then the stream was
/// lost, which is an error.
pub async fn open(
    context: &Context,
    settings: &Settings,
    identity: ClusterIdentity,
    partition: u16,
    were_created: bool,
    max_payload: usize,
) -> Result<Stream, Error> {
    let name = settings.stream_name(partition);
    let wanted = stream_config(settings, identity, partition, max_payload);
    match context.get_stream(&name).await {
        Ok(stream) => {
            let found = &stream.cached_info().config;
            check(found, &wanted, settings.replicas)?;
            match keeps_all_batches(found, max_payload) {
                true => Ok(stream),
                false => make_keep_all_batches(context, settings, found, max_payload).await,
            }
        }
        Err(error) => {
            let is_missing = matches!(error.kind(), GetStreamErrorKind::JetStream(error)
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND);
            if !is_missing {
                return Err(refusal(&format!("stream {name}"), settings, &error));
            }
            if were_created {
                return Err(Error::lasting(format!(
                    "stream {name} is gone, and all that it kept; restore it, or begin anew: remove the streams CRORE_{0}_* and the bucket CRORE_{0} (`nats kv del CRORE_{0}`), and start again",
                    settings.name.to_uppercase()
                )));
            }
            let created = context.create_stream(wanted).await;
            created.map_err(|error| refusal(&format!("stream {name}"), settings, &error))
        }
    }
}

/// Whether NATS drops nothing from the stream by itself, and accepts the longest messages.
fn keeps_all_batches(found: &Config, max_payload: usize) -> bool {
    let has_room = found.max_bytes <= 0 || found.max_bytes >= stream_bytes_min(max_payload);
    found.discard == DiscardPolicy::New && found.max_age.is_zero() && has_room
}

/// Changes the settings of a stream from which NATS would drop batches. An earlier version created the stream with these settings, or
/// somebody edited them.
async fn make_keep_all_batches(
    context: &Context,
    settings: &Settings,
    found: &Config,
    max_payload: usize,
) -> Result<Stream, Error> {
    let name = &found.name;
    let corrected = Config {
        discard: DiscardPolicy::New,
        max_age: Duration::ZERO,
        max_bytes: match found.max_bytes {
            ..=0 => -1,
            bytes => bytes.max(stream_bytes_min(max_payload)),
        },
        ..found.clone()
    };
    let what = format!(
        "stream {name} must have discard new, no max_age, and max_bytes of {} at least: batches are lost otherwise that no checkpoint contains (`nats stream edit {name}` changes it, too)",
        stream_bytes_min(max_payload)
    );
    let updated = context.update_stream(corrected).await;
    updated.map_err(|error| refusal(&what, settings, &error))?;
    tracing::warn!(
        "cluster: stream {name} was changed: it has discard new and no max_age now, so that NATS drops no batch that no checkpoint contains"
    );
    let stream = context.get_stream(name).await;
    stream.map_err(|error| refusal(&format!("stream {name}"), settings, &error))
}

/// A field of a stream's configuration, compared with what it must be.
pub struct StreamField {
    pub name: &'static str,
    pub is_right: bool,
    pub found: String,
    pub wanted: String,
    pub remedy: String,
}

/// Fails with the first field that does not fit.
pub fn check_fields(
    what: &str,
    fields: impl IntoIterator<Item = StreamField>,
) -> Result<(), Error> {
    let Some(field) = fields.into_iter().find(|field| !field.is_right) else {
        return Ok(());
    };
    let StreamField {
        name,
        found,
        wanted,
        remedy,
        ..
    } = field;
    Err(Error::lasting(format!(
        "{what}: {name} is {found}, and must be {wanted}; {remedy}"
    )))
}

/// Checks an existing stream.
fn check(found: &Config, wanted: &Config, replicas: usize) -> Result<(), Error> {
    let name = &found.name;
    let id = |config: &Config| {
        let id = config.metadata.get(CLUSTER_ID_KEY).cloned();
        id.unwrap_or("missing".to_string())
    };
    // Fields that must be equal: the owner of the stream, and how it is stored.
    let equal_fields = [
        (
            "metadata crore.cluster",
            id(found),
            id(wanted),
            "it belongs to another cluster of this name, or to one whose bucket was removed: choose another cluster.name, or remove these streams".to_string(),
        ),
        (
            "storage",
            format!("{:?}", found.storage),
            format!("{:?}", wanted.storage),
            RECREATE_REMEDY.to_string(),
        ),
        (
            "num_replicas",
            found.num_replicas.to_string(),
            wanted.num_replicas.to_string(),
            format!("write `nats stream edit {name} --replicas {replicas}`, or change cluster.replicas"),
        ),
        (
            "subjects",
            found.subjects.join(", "),
            wanted.subjects.join(", "),
            RECREATE_REMEDY.to_string(),
        ),
    ];
    let equal_fields = equal_fields.map(|(name, found, wanted, remedy)| StreamField {
        name,
        is_right: found == wanted,
        found,
        wanted,
        remedy,
    });
    // Limits because of which NATS would drop or refuse batches.
    let limits = [
        ("max_msgs", found.max_messages),
        ("max_msgs_per_subject", found.max_messages_per_subject),
        ("max_consumers", i64::from(found.max_consumers)),
        ("max_msg_size", i64::from(found.max_message_size)),
    ];
    let limits = limits.map(|(field, limit)| {
        let is_enough = field == "max_msg_size" && limit >= MESSAGE_BYTES_MIN as i64;
        StreamField {
            name: field,
            is_right: limit <= 0 || is_enough,
            found: limit.to_string(),
            wanted: "-1 (no limit)".to_string(),
            remedy: format!("write `nats stream edit {name}` and set it to -1"),
        }
    });
    let fields = equal_fields
        .into_iter()
        .chain(limits)
        .chain(check_kind(found));
    check_fields(&format!("stream {name}"), fields)?;
    if found.max_bytes != wanted.max_bytes {
        tracing::warn!(
            "cluster: stream {name} has max_bytes {}; cluster.history_bytes asks for {} (`nats stream edit {name}` changes it)",
            found.max_bytes,
            wanted.max_bytes
        );
    }
    Ok(())
}

/// Compares the properties that a stream of the log must not have.
fn check_kind(found: &Config) -> [StreamField; 7] {
    let sources = found.sources.as_ref();
    let rows = [
        (
            "retention",
            found.retention != RetentionPolicy::Limits,
            "limits",
        ),
        ("no_ack", found.no_ack, "false"),
        ("sealed", found.sealed, "false"),
        ("mirror", found.mirror.is_some(), "absent"),
        (
            "sources",
            sources.is_some_and(|it| !it.is_empty()),
            "absent",
        ),
        (
            "subject_transform",
            found.subject_transform.is_some(),
            "absent",
        ),
        (
            "persist_mode",
            found.persist_mode == Some(PersistenceMode::Async),
            "default",
        ),
    ];
    rows.map(|(name, is_wrong, wanted)| StreamField {
        name,
        is_right: !is_wrong,
        found: "something else".to_string(),
        wanted: wanted.to_string(),
        remedy: RECREATE_REMEDY.to_string(),
    })
}

/// Reads the messages of a stream from this sequence on, with a new consumer.
pub async fn consume(stream: &Stream, start_sequence: u64) -> Result<pull::Stream, String> {
    let failed = |error: &dyn std::error::Error| chain(error);
    let config = pull::Config {
        description: Some("a node of Crore".to_string()),
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
        ack_policy: AckPolicy::None,
        inactive_threshold: INACTIVE_THRESHOLD,
        num_replicas: 1,
        memory_storage: true,
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await;
    let consumer = consumer.map_err(|error| failed(&error))?;
    let messages = consumer
        .stream()
        .max_bytes_per_batch(UNREQUESTED_BYTES_MAX)
        .heartbeat(HEARTBEAT_INTERVAL)
        .messages();
    messages.await.map_err(|error| failed(&error))
}
