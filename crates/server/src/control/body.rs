//! A request body of the admin port, with a deadline for its arrival.
//!
//! Invariants: the timeout begins at the end of the request's head, and pieces of the body do not extend it. A request without a body has
//! no timer. If the deadline passes, the handler that reads the body gets an error, and a flag is set so that the answer can name the
//! reason.

use std::error::Error;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

/// A body with a deadline.
pub struct DeadlineBody {
    body: Incoming,
    /// None if the request has no body.
    deadline: Option<Pin<Box<Sleep>>>,
    late: Arc<AtomicBool>,
}

/// The body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct BodyTimedOut;

/// Sets the deadline of the request's body to `timeout` from now. The returned flag is set if the deadline passes.
pub fn with_deadline(
    request: Request<Incoming>,
    timeout: Duration,
) -> (Request<DeadlineBody>, Arc<AtomicBool>) {
    let late = Arc::new(AtomicBool::new(false));
    let late_flag = late.clone();
    let request = request.map(|body| DeadlineBody {
        deadline: (!body.is_end_stream()).then(|| Box::pin(tokio::time::sleep(timeout))),
        body,
        late: late_flag,
    });
    (request, late)
}

impl Body for DeadlineBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // Bytes that have arrived are accepted even after the deadline.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let over = |end: &mut Pin<Box<Sleep>>| end.as_mut().poll(cx).is_ready();
        if !self.deadline.as_mut().is_some_and(over) {
            return Poll::Pending;
        }
        self.late.store(true, Relaxed);
        Poll::Ready(Some(Err(BodyTimedOut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
