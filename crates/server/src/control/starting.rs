//! Serves the admin port while the server restores its state, which may take minutes. `/healthz` answers that the server is alive,
//! `/readyz` that the server is not ready, and all other requests get 503 with `Retry-After`. The data ports do not listen yet.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::oneshot;

use super::admin_port::{self, AdminPort, PortCounters};
use super::request_guard::{self, RequestGuard};
use crate::settings::admin::Admin;

const NOT_READY_TEXT: &str = "the server reads its log, and serves clients when it is done";
/// `Retry-After`, in seconds.
const RETRY_AFTER_S: &str = "1";

/// When the server is ready, the requests in flight have this time to finish. A load balancer counts a probe as failed if its connection is reset.
const FINISH_TIMEOUT: Duration = Duration::from_millis(200);
/// Time between two checks whether all connections have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The thread that serves the admin port during the start. Dropping this value ends the thread.
pub struct Starting {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Starting {
    /// Starts the thread. None if there is no admin port.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn begin(listener: Option<&TcpListener>, admin: &Admin) -> anyhow::Result<Option<Self>> {
        let Some(listener) = listener else {
            return Ok(None);
        };
        let (listener, admin) = (listener.try_clone()?, admin.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let answer = move || {
            // The channel ends when the sender is dropped, so `stopped` is ready then.
            if let Err(error) = serve(listener, &admin, async { drop(stopped.await) }) {
                tracing::warn!("the admin port does not answer during the start: {error}");
            }
        };
        let thread = thread::Builder::new().name("admin-start".to_string());
        let thread = thread
            .spawn(answer)
            .context("cannot start the thread admin-start")?;
        Ok(Some(Starting {
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already logged.
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: TcpListener,
    admin: &Admin,
    stopped: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    listener.set_nonblocking(true)?;
    let guard = Arc::new(RequestGuard::new(
        admin,
        admin.key().map_err(anyhow::Error::msg)?,
        listener.local_addr()?,
    ));
    let later =
        || async { unavailable(axum::Json(serde_json::json!({ "error": NOT_READY_TEXT }))) };
    let not_ready = get(async || unavailable(format!("{NOT_READY_TEXT}\n")));
    let routes = admin_port::probe_routes(not_ready).fallback(later).layer(
        axum::middleware::from_fn_with_state(guard, request_guard::check_request),
    );
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let counters = PortCounters::new(admin);
        let port = AdminPort::new(admin, counters.clone(), routes.clone(), routes);
        tokio::select! {
            () = port.serve(listener) => {}
            () = stopped => {}
        }
        let end = Instant::now() + FINISH_TIMEOUT;
        while counters.open_connections() > 0 && Instant::now() < end {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        // Dropping the runtime ends the connections that are still open.
        anyhow::Ok(())
    })
}

/// An answer with 503 that closes the connection, so that the client's next request goes to the running server.
fn unavailable(body: impl IntoResponse) -> impl IntoResponse {
    let fields = [
        (header::RETRY_AFTER, RETRY_AFTER_S),
        (header::CONNECTION, "close"),
    ];
    (StatusCode::SERVICE_UNAVAILABLE, fields, body)
}
