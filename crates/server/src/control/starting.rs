//! The admin port while the server restores its state, which may take minutes. `/healthz` answers that the server is alive, `/readyz` that it is
//! not ready, and all other requests are told to come later. The data ports do not listen yet.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::oneshot;

use super::gate::{self, Gate};
use super::port::{Counts, Port};
use crate::settings::admin::Admin;

const WHY: &str = "the server reads its log, and serves clients when it is done";
/// `Retry-After`, in seconds.
const AGAIN: &str = "1";

/// Time to finish requests that are in flight when the start ends: a probe whose connection is reset would count as failed.
const GRACE: Duration = Duration::from_millis(200);
/// Between two checks whether all are finished.
const LOOK: Duration = Duration::from_millis(5);

/// A thread that serves the admin port, until this is dropped.
pub struct Starting {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Starting {
    /// Starts the thread, if there is an admin port.
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
            // Dropping the sender also ends it.
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
    let gate = Arc::new(Gate::new(admin, listener.local_addr()?));
    let later = || async { not_ready(axum::Json(serde_json::json!({ "error": WHY }))) };
    let routes = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async || not_ready(format!("{WHY}\n"))))
        .fallback(later)
        .layer(axum::middleware::from_fn_with_state(gate, gate::guard));
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let counts = Counts::new(admin);
        let port = Port::new(admin, counts.clone(), routes.clone(), routes);
        tokio::select! {
            () = port.serve(listener) => {}
            () = stopped => {}
        }
        let end = Instant::now() + GRACE;
        while counts.open() > 0 && Instant::now() < end {
            tokio::time::sleep(LOOK).await;
        }
        // Connections end with the runtime.
        anyhow::Ok(())
    })
}

/// Closes the connection, so that the client's next request goes to the running server.
fn not_ready(body: impl IntoResponse) -> impl IntoResponse {
    let fields = [(header::RETRY_AFTER, AGAIN), (header::CONNECTION, "close")];
    (StatusCode::SERVICE_UNAVAILABLE, fields, body)
}
