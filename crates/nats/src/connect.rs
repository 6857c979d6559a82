//! Connects to NATS, and checks the servers, the streams and the buckets before any client is served. All calls block.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, Event};

use crate::driver::Driver;
use crate::error::{Error, chain};
use crate::identity::{self, ClusterIdentity};
use crate::log_state::LogState;
use crate::settings::Settings;
use crate::store::Store;
use crate::streams::{self, Stream};
use crate::table::Table;
use crate::{bucket, monitor, permissions};

/// Delay before a failed step is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The shortest time between two log lines about failed steps.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// A connection to NATS, before the log is read.
pub struct Connection {
    pub(crate) driver: Driver,
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) settings: Settings,
    pub(crate) log: Arc<LogState>,
}

/// Connects to a server and checks it.
///
/// # Errors
/// If no server answers, or the server refuses the credentials or is unsuitable.
pub fn connect(settings: Settings) -> Result<Connection, Error> {
    let driver = Driver::start()?;
    let log = Arc::new(LogState::default());
    let connect_once = async || dial(&settings, &log).await;
    let client = driver.block_on(retry(settings.patience, connect_once))?;
    // Runs within the runtime, because this starts a task.
    let context = driver.block_on(async { jetstream::new(client.clone()) });
    let connection = Connection {
        driver,
        client,
        context,
        settings,
        log,
    };
    connection.check_server()?;
    Ok(connection)
}

impl Connection {
    fn check_server(&self) -> Result<(), Error> {
        let info = self.client.server_info();
        streams::check_version(&info.version)?;
        streams::check_payload(self.client.max_payload())?;
        let permissions =
            async || permissions::check(&self.client, &self.settings, &self.log).await;
        self.block_on(permissions)?;
        let query = monitor::query_all(&self.settings.monitoring);
        let sync_intervals = self.driver.block_on(query);
        if sync_intervals.is_empty() {
            tracing::info!(
                "cluster: sync_interval of NATS was not checked; name cluster.monitoring, and see that each server has `sync_interval: always`"
            );
        }
        self.log.set_sync_intervals(sync_intervals);
        Ok(())
    }

    /// The maximum size of a NATS message in bytes.
    pub fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Reads the identity of the cluster. If this is the first node, creates the identity `wanted`. If `wanted` has 0 partitions, any number of partitions
    /// fits, and a new cluster gets [`PARTITIONS`](crate::PARTITIONS). `newest_format` is the newest format that this version reads.
    ///
    /// # Errors
    /// If the identity cannot be read, or does not fit this node.
    pub fn read_or_create_identity(
        &self,
        wanted: ClusterIdentity,
        newest_format: u32,
    ) -> Result<ClusterIdentity, Error> {
        let read = async || {
            identity::read_or_create(&self.context, &self.settings, wanted, newest_format).await
        };
        let identity = self.block_on(read)?;
        self.log
            .set_epoch_and_format(identity.epoch, identity.format);
        Ok(identity)
    }

    /// Begins a new epoch after this one, because the log has lost batches. Does nothing if another node has already done so.
    ///
    /// # Errors
    /// If the identity cannot be changed.
    pub fn renew_epoch(&self, epoch: u32) -> Result<(), Error> {
        self.block_on(async || identity::begin_epoch(&self.context, &self.settings, epoch).await)
    }

    /// Seconds since 1970 by the clock of NATS. The streams must exist.
    ///
    /// # Errors
    /// If NATS does not report its time.
    pub fn unix_s(&self) -> Result<u64, Error> {
        self.block_on(async || streams::query_unix_s(&self.context, &self.settings).await)
    }

    /// Creates missing streams, and checks the others.
    ///
    /// # Errors
    /// If a stream cannot be created or used.
    pub fn open_streams(&self, identity: ClusterIdentity) -> Result<Vec<Stream>, Error> {
        let were_created =
            async || identity::streams_were_created(&self.context, &self.settings).await;
        let were_created = self.block_on(were_created)?;
        let mut streams = Vec::new();
        for partition in 0..identity.partitions {
            let open = async || {
                let max_payload = self.max_payload();
                streams::open(
                    &self.context,
                    &self.settings,
                    identity,
                    partition,
                    were_created,
                    max_payload,
                )
                .await
            };
            streams.push(self.block_on(open)?);
        }
        if !were_created {
            let record =
                async || identity::record_streams_created(&self.context, &self.settings).await;
            self.block_on(record)?;
        }
        Ok(streams)
    }

    /// Opens the store of checkpoints for these streams. Creates the bucket if it is missing, and checks it otherwise.
    ///
    /// # Errors
    /// If the bucket cannot be created or used.
    pub fn open_store(
        &self,
        streams: &[Stream],
        identity: ClusterIdentity,
    ) -> Result<Store, Error> {
        let Connection {
            driver,
            context,
            settings,
            log,
            ..
        } = self;
        let open = async || bucket::open(context, settings).await;
        let bucket = self.block_on(open)?;
        Ok(Store::new(
            driver.clone(),
            bucket,
            streams.to_vec(),
            identity,
            log.clone(),
        ))
    }

    /// Opens the table with this name, which all nodes share. The identity of the cluster must exist.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn open_table(&self, name: &'static str) -> Result<Table, Error> {
        let open = async || {
            let store = identity::open_or_create_bucket(&self.context, &self.settings).await?;
            Table::open(store, name).await
        };
        let (table, follow) = self.block_on(open)?;
        self.driver.spawn(follow);
        Ok(table)
    }

    /// Runs a step. Repeats it as long as it fails and may still succeed.
    fn block_on<T>(&self, step: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.driver.block_on(retry(self.settings.patience, step))
    }
}

/// Calls `step` until it succeeds, fails for good, or `patience` is over.
async fn retry<T>(
    patience: Duration,
    mut step: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    let mut logged_at: Option<Instant> = None;
    loop {
        match step().await {
            Err(error) if start.elapsed() < error.retry_time(patience) => {
                if logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                    tracing::warn!("cluster: {error}; trying again");
                    logged_at = Some(Instant::now());
                }
            }
            result => return result,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn dial(settings: &Settings, log: &Arc<LogState>) -> Result<Client, Error> {
    let log = log.clone();
    let options = settings
        .connect_options()
        .await?
        .event_callback(move |event| {
            record_event(&event, &log);
            std::future::ready(())
        });
    let urls = settings.urls.join(", ");
    options.connect(&settings.urls).await.map_err(|error| {
        let why = chain(&error);
        match error.kind() {
            ConnectErrorKind::ServerParse => Error::lasting(format!(
                "cluster.urls: {urls}: {why}; write `nats://host:4222` or `tls://host:4222`, with commas between"
            )),
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Error::lasting(format!(
                    "NATS at {urls} refuses our credentials ({why}); check cluster.user and cluster.password, cluster.token, cluster.credentials or cluster.nkey"
                ))
            }
            ConnectErrorKind::Tls => Error::lasting(format!(
                "no TLS with NATS at {urls}: {why}; check cluster.tls_ca, cluster.tls_certificate and cluster.tls_key"
            )),
            _ if why.contains("fatal alert") => Error::lasting(format!(
                "NATS at {urls} ends our TLS: {why}; check cluster.tls_certificate and cluster.tls_key, which it may ask for"
            )),
            _ if why.contains("certificate") => Error::lasting(format!(
                "no TLS with NATS at {urls}: {why}; check cluster.tls_ca"
            )),
            _ => Error::transient(format!(
                "no server of NATS answers at {urls} ({why}); check cluster.urls, and that nats-server runs there"
            )),
        }
    })
}

/// Records an event of the connection.
fn record_event(event: &Event, log: &LogState) {
    match event {
        Event::Connected => {
            log.set_connected(true);
            tracing::info!("cluster: connected to NATS");
        }
        Event::Disconnected => {
            log.set_connected(false);
            tracing::warn!("cluster: the connection to NATS is lost; connecting again");
        }
        Event::LameDuckMode => {
            tracing::info!("cluster: the server of NATS is about to stop; connecting to another");
        }
        other => {
            let text = other.to_string();
            if text.contains("Permissions Violation") {
                log.record_denial(text.clone());
            }
            log.record_error(&text);
        }
    }
}
