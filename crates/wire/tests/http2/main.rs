//! Tests of the HTTP/2 codec: HPACK with the vectors of its RFC, requests and answers, the states of streams, flow control, and what each
//! attack costs. No cut of the stream changes the result.

mod answers;
mod cuts;
mod floods;
mod flow;
mod hpack;
mod peer;
mod requests;
mod streams;
