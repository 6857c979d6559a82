//! The object store bucket of the checkpoints: creates it if it is missing, and checks it otherwise.

use async_nats::jetstream::object_store::{Config, ObjectStore};
use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{Context, ErrorCode, context::GetStreamErrorKind};

use crate::error::{Error, chain};
use crate::settings::{Settings, refusal};
use crate::streams::{Stream, StreamField, check_fields};

/// The bucket.
pub struct Bucket {
    pub name: String,
    pub objects: ObjectStore,
    /// The stream in which NATS stores the bucket.
    pub stream: Stream,
}

/// Creates or checks the bucket.
pub async fn open(context: &Context, settings: &Settings) -> Result<Bucket, Error> {
    let bucket = settings.bucket_name();
    let name = format!("OBJ_{bucket}");
    let what = format!("object store {bucket}");
    match context.get_stream(&name).await {
        Ok(stream) => check(&stream, &bucket, settings.replicas)?,
        Err(error) => {
            let is_missing = matches!(error.kind(), GetStreamErrorKind::JetStream(error)
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND);
            if !is_missing {
                return Err(refusal(&what, settings, &error));
            }
            let config = Config {
                description: Some(format!(
                    "Checkpoints of the Crore cluster `{}`",
                    settings.name
                )),
                storage: StorageType::File,
                num_replicas: settings.replicas,
                max_bytes: -1,
                bucket: bucket.clone(),
                ..Default::default()
            };
            let created = context.create_object_store(config).await;
            created.map_err(|error| refusal(&what, settings, &error))?;
        }
    }
    let failed = |why: String| Error::transient(format!("{what}: {why}"));
    let objects = context.get_object_store(&bucket).await;
    let objects = objects.map_err(|error| failed(chain(&error)))?;
    let stream = context.get_stream(&name).await;
    Ok(Bucket {
        name: bucket,
        objects,
        stream: stream.map_err(|error| failed(chain(&error)))?,
    })
}

/// Checks an existing bucket: NATS must not delete anything from it by itself.
fn check(stream: &Stream, bucket: &str, replicas: usize) -> Result<(), Error> {
    let found = &stream.cached_info().config;
    let name = &found.name;
    let rows = [
        (
            "num_replicas",
            found.num_replicas == replicas,
            found.num_replicas.to_string(),
            replicas.to_string(),
        ),
        (
            "storage",
            found.storage == StorageType::File,
            format!("{:?}", found.storage),
            "File".to_string(),
        ),
        (
            "max_age",
            found.max_age.is_zero(),
            format!("{} s", found.max_age.as_secs()),
            "0 (no limit)".to_string(),
        ),
        (
            "max_bytes",
            found.max_bytes <= 0,
            found.max_bytes.to_string(),
            "-1 (no limit)".to_string(),
        ),
        (
            "sealed",
            !found.sealed,
            found.sealed.to_string(),
            "false".to_string(),
        ),
    ];
    let remedy = format!("write `nats stream edit {name}`, or choose another cluster.name");
    let fields = rows.map(|(name, is_right, found, wanted)| StreamField {
        name,
        is_right,
        found,
        wanted,
        remedy: remedy.clone(),
    });
    check_fields(&format!("object store {bucket}"), fields)
}
