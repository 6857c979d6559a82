//! A request body of the admin port, with a deadline for its arrival.
//!
//! Invariants: the timeout begins when [`with_deadline`] is called (at the end of the request's head), and pieces of the body do not extend it. A request
//! without a body has no timer. If a handler reads the body after the deadline and finds no more bytes, it gets an error, and a flag is set so that the
//! answer can give the reason.

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
    timed_out: Arc<AtomicBool>,
}

/// The body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct BodyTimedOut;

/// Sets the deadline of the request's body to `timeout` from now. The returned flag is set when a reader gets [`BodyTimedOut`].
pub fn with_deadline(
    request: Request<Incoming>,
    timeout: Duration,
) -> (Request<DeadlineBody>, Arc<AtomicBool>) {
    let timed_out = Arc::new(AtomicBool::new(false));
    let timed_out_flag = timed_out.clone();
    let request = request.map(|body| DeadlineBody {
        deadline: (!body.is_end_stream()).then(|| Box::pin(tokio::time::sleep(timeout))),
        body,
        timed_out: timed_out_flag,
    });
    (request, timed_out)
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
        let has_passed = |end: &mut Pin<Box<Sleep>>| end.as_mut().poll(cx).is_ready();
        if !self.deadline.as_mut().is_some_and(has_passed) {
            return Poll::Pending;
        }
        self.timed_out.store(true, Relaxed);
        Poll::Ready(Some(Err(BodyTimedOut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
