//! The memory that a socket shares with the kernel, cut into frames of one size.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

/// The memory. Each frame belongs either to the kernel or to us. Only [`super::XdpSocket`] knows which.
pub(super) struct Umem {
    start: NonNull<c_void>,
    frames: u32,
    frame_bytes: u32,
}

impl Umem {
    /// Allocates frames. The size of one is a power of two between 2,048 and the size of a page, as the kernel wants it.
    pub(super) fn new(frames: u32, frame_bytes: u32) -> io::Result<Umem> {
        let bytes = frames as usize * frame_bytes as usize;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the place, so nothing that exists is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Umem {
            start,
            frames,
            frame_bytes,
        })
    }

    fn bytes(&self) -> usize {
        self.frames as usize * self.frame_bytes as usize
    }

    /// The description of the memory for the kernel.
    pub(super) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.start.as_ptr() as u64,
            len: self.bytes() as u64,
            chunk_size: self.frame_bytes,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// The address of a frame within the memory.
    pub(super) fn address(&self, frame: u32) -> u64 {
        u64::from(frame) * u64::from(self.frame_bytes)
    }

    /// A pointer to the byte at this address, if `bytes` bytes from there on are within one frame.
    fn pointer_at(&self, address: u64, bytes: u32) -> Option<*mut u8> {
        let frame_offset = address % u64::from(self.frame_bytes);
        let is_inside = address < self.bytes() as u64
            && frame_offset + u64::from(bytes) <= u64::from(self.frame_bytes);
        // SAFETY: the address is inside the memory.
        is_inside.then(|| unsafe { self.start.as_ptr().cast::<u8>().add(address as usize) })
    }

    /// Bytes of a frame that belongs to us; `None` if they are not within one frame.
    pub(super) fn read(&self, address: u64, bytes: u32) -> Option<&[u8]> {
        let start = self.pointer_at(address, bytes)?;
        // SAFETY: the bytes are inside the memory, which is initialised with zeroes. The caller owns the frame, so that the kernel does not
        // write there, and `&self` keeps `write` away.
        Some(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
    }

    /// Bytes of a frame that belongs to us, to write; `None` if they are not within one frame.
    pub(super) fn write(&mut self, address: u64, bytes: u32) -> Option<&mut [u8]> {
        let start = self.pointer_at(address, bytes)?;
        // SAFETY: as in `read`. `&mut self` keeps every other use of the memory away.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        let bytes = self.bytes();
        // SAFETY: the memory was mapped with this size. The kernel holds its pages itself as long as its socket is open.
        let _ = unsafe { munmap(self.start.as_ptr(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_within_one_frame() {
        let mut umem = Umem::new(4, 2_048).unwrap();
        let second = umem.address(1);
        umem.write(second, 3).unwrap().copy_from_slice(b"abc");
        assert_eq!(umem.read(second + 1, 2), Some(&b"bc"[..]));
        assert_eq!(umem.read(second - 1, 1), Some(&[0][..]));
        for (address, bytes) in [(second - 1, 2), (0, 2_049), (4 * 2_048, 0), (u64::MAX, 1)] {
            assert_eq!(umem.read(address, bytes), None, "{address} {bytes}");
        }
    }
}
