//! The connection, and the checks before any client is served. It blocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, Event};

use crate::driver::Driver;
use crate::error::{Error, chain};
use crate::numbers::{self, Numbers};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::store::Store;
use crate::streams::{self, Stream};
use crate::table::Table;
use crate::{bucket, monitor, rights};

/// How often something that may pass is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often it is told why.
const TELL: Duration = Duration::from_secs(5);

/// Connected to NATS, and not reading yet.
pub struct Connected {
    pub(crate) driver: Driver,
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<Shared>,
}

/// Connects, and checks the server.
///
/// # Errors
/// When there is no server, none that takes us, or one that cannot be used.
pub fn connect(settings: Settings) -> Result<Connected, Error> {
    let driver = Driver::start()?;
    let shared = Arc::new(Shared::default());
    let connecting = async || dial(&settings, &shared).await;
    let client = driver.block_on(patient(settings.patience, connecting))?;
    // It starts a task.
    let context = driver.block_on(async { jetstream::new(client.clone()) });
    let connected = Connected {
        driver,
        client,
        context,
        settings,
        shared,
    };
    connected.check_server()?;
    Ok(connected)
}

impl Connected {
    fn check_server(&self) -> Result<(), Error> {
        let info = self.client.server_info();
        streams::check_version(&info.version)?;
        streams::check_payload(self.client.max_payload())?;
        let rights = async || rights::check(&self.client, &self.settings, &self.shared).await;
        self.block_on(rights)?;
        let asked = monitor::all(&self.settings.monitoring);
        let found = self.driver.block_on(asked);
        if found.is_empty() {
            tracing::info!(
                "cluster: sync_interval of NATS was not checked; name cluster.monitoring, and see that each server has `sync_interval: always`"
            );
        }
        self.shared.set_sync(found);
        Ok(())
    }

    /// Bytes that a message of NATS may have.
    pub fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// The numbers of the cluster: these, if this is its first node, else those of the first one. Partitions of 0: any number of them, and
    /// [`PARTITIONS`](crate::PARTITIONS) in a new cluster.
    ///
    /// # Errors
    /// When they cannot be read, or do not fit.
    pub fn numbers(&self, new: Numbers) -> Result<Numbers, Error> {
        let read = async || numbers::get(&self.context, &self.settings, new).await;
        let numbers = self.block_on(read)?;
        self.shared.begin_with(numbers.epoch, new.format);
        Ok(numbers)
    }

    /// Seconds since 1970 by the clock of NATS. The streams must be there.
    ///
    /// # Errors
    /// When it is not told.
    pub fn unix_s(&self) -> Result<u64, Error> {
        self.block_on(async || streams::unix_s(&self.context, &self.settings).await)
    }

    /// Makes the streams that are missing, and checks the others.
    ///
    /// # Errors
    /// When one cannot be made or used.
    pub fn streams(&self, numbers: Numbers) -> Result<Vec<Stream>, Error> {
        let made = async || numbers::has_streams(&self.context, &self.settings).await;
        let made = self.block_on(made)?;
        let mut streams = Vec::new();
        for partition in 0..numbers.partitions {
            let one = async || {
                let of = (partition, made);
                let max_payload = self.max_payload();
                streams::open(&self.context, &self.settings, numbers, of, max_payload).await
            };
            streams.push(self.block_on(one)?);
        }
        if !made {
            let done = async || numbers::set_streams(&self.context, &self.settings).await;
            self.block_on(done)?;
        }
        Ok(streams)
    }

    /// The checkpoints of the partitions of these streams. Makes their bucket if it is missing, and checks it otherwise.
    ///
    /// # Errors
    /// When the bucket cannot be made or used.
    pub fn store(&self, streams: &[Stream], numbers: Numbers) -> Result<Store, Error> {
        let Connected {
            driver,
            context,
            settings,
            shared,
            ..
        } = self;
        let open = async || bucket::open(context, settings).await;
        let (bucket, objects) = self.block_on(open)?;
        let (streams, shared) = (streams.to_vec(), shared.clone());
        let of = (numbers.id, numbers.epoch);
        Ok(Store::new(
            driver.clone(),
            (settings.bucket(), bucket, objects),
            streams,
            of,
            shared,
        ))
    }

    /// A table that all nodes share, of this name. The numbers must be there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn table(&self, name: &'static str) -> Result<Table, Error> {
        let open = async || {
            let store = numbers::bucket(&self.context, &self.settings).await?;
            Table::open(store, name).await
        };
        let (table, follow) = self.block_on(open)?;
        self.driver.spawn(follow);
        Ok(table)
    }

    fn block_on<T>(&self, what: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
        let patient = patient(self.settings.patience, what);
        self.driver.block_on(patient)
    }
}

/// Tries until it succeeds, fails for good, or has failed for so long.
async fn patient<T>(
    patience: Duration,
    mut what: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut told_at: Option<Instant> = None;
    loop {
        match what().await {
            Err(error) if began.elapsed() < error.patience(patience) => {
                if told_at.is_none_or(|at| at.elapsed() >= TELL) {
                    tracing::warn!("cluster: {error}; trying again");
                    told_at = Some(Instant::now());
                }
            }
            done => return done,
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn dial(settings: &Settings, shared: &Arc<Shared>) -> Result<Client, Error> {
    let told = shared.clone();
    let options = settings.options().await?.event_callback(move |event| {
        tell(&event, &told);
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

/// Notes the events of the connection.
fn tell(event: &Event, shared: &Shared) {
    match event {
        Event::Connected => {
            shared.set_connected(true);
            tracing::info!("cluster: connected to NATS");
        }
        Event::Disconnected => {
            shared.set_connected(false);
            tracing::warn!("cluster: the connection to NATS is lost; connecting again");
        }
        Event::LameDuckMode => {
            tracing::info!("cluster: the server of NATS is about to stop; connecting to another");
        }
        other => {
            let text = other.to_string();
            if text.contains("Permissions Violation") {
                shared.deny(text.clone());
            }
            shared.fail(&text);
        }
    }
}
