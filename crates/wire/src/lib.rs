//! Bytes to frames and back: the codecs of Crore, sans-io, `no_std` with `alloc`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
