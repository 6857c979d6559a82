//! The body of a request to the admin port, with a timeout.
//!
//! Invariants: the time counts from the end of the head, however many pieces the body has; a request without a body has no
//! timer. A late body ends with an error for its reader. A flag tells the caller, so that the answer can name the reason.

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
pub struct Timed {
    body: Incoming,
    /// None if the request has no body.
    end: Option<Pin<Box<Sleep>>>,
    late: Arc<AtomicBool>,
}

/// The body did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct Late;

/// Limits the time of the request's body, from now on. The flag is set if the body was late.
pub fn timed(request: Request<Incoming>, time: Duration) -> (Request<Timed>, Arc<AtomicBool>) {
    let late = Arc::new(AtomicBool::new(false));
    let marked = late.clone();
    let request = request.map(|body| Timed {
        end: (!body.is_end_stream()).then(|| Box::pin(tokio::time::sleep(time))),
        body,
        late: marked,
    });
    (request, late)
}

impl Body for Timed {
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
        if !self.end.as_mut().is_some_and(over) {
            return Poll::Pending;
        }
        self.late.store(true, Relaxed);
        Poll::Ready(Some(Err(Late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
