//! The memory that a socket shares with the kernel, cut into frames of one size.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};

/// Memory for frames, unmapped when its halves are gone.
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

/// Half of the memory. Each frame belongs either to the kernel or to us. Only the [`super::socket`] knows which.
pub(super) struct Umem {
    mapping: Rc<Mapping>,
    /// The address of the first byte, and of the byte behind the last one.
    range: Range<u64>,
    frame_bytes: u32,
}

impl Umem {
    /// Allocates two halves with `frames` frames each. As the kernel requires, the size of a frame is a power of two between 2,048 and the
    /// size of a page.
    pub(super) fn halves(frames: u32, frame_bytes: u32) -> io::Result<[Umem; 2]> {
        let half_bytes = u64::from(frames) * u64::from(frame_bytes);
        let bytes = 2 * half_bytes as usize;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the place, so nothing that exists is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Rc::new(Mapping { start, bytes });
        let half = |index: u64| Umem {
            mapping: Rc::clone(&mapping),
            range: index * half_bytes..(index + 1) * half_bytes,
            frame_bytes,
        };
        Ok([half(0), half(1)])
    }

    /// The description of the whole memory for the kernel.
    pub(super) fn registration(&self) -> XdpUmemReg {
        XdpUmemReg {
            addr: self.mapping.start.as_ptr() as u64,
            len: self.mapping.bytes as u64,
            chunk_size: self.frame_bytes,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        }
    }

    /// The addresses of the frames of this half.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.clone().step_by(self.frame_bytes as usize)
    }

    /// A pointer to the byte at this address, if `bytes` bytes from there on are within one frame of this half.
    fn pointer_at(&self, address: u64, bytes: u32) -> Option<*mut u8> {
        let frame_offset = address % u64::from(self.frame_bytes);
        let is_inside = self.range.contains(&address)
            && frame_offset + u64::from(bytes) <= u64::from(self.frame_bytes);
        let start = self.mapping.start.as_ptr().cast::<u8>();
        // SAFETY: the address is inside the memory.
        is_inside.then(|| unsafe { start.add(address as usize) })
    }

    /// Bytes of a frame that belongs to us; `None` if they are not within one frame.
    pub(super) fn read(&self, address: u64, bytes: u32) -> Option<&[u8]> {
        let start = self.pointer_at(address, bytes)?;
        // SAFETY: the bytes are inside the memory, which is initialised with zeroes. The caller owns the frame, so that the kernel does not
        // write there, `&self` keeps `write` away, and the other half has other bytes.
        Some(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
    }

    /// Bytes of a frame that belongs to us, to write; `None` if they are not within one frame.
    pub(super) fn write(&mut self, address: u64, bytes: u32) -> Option<&mut [u8]> {
        let start = self.pointer_at(address, bytes)?;
        // SAFETY: as in `read`. `&mut self` keeps every other use of the memory away.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this size. The kernel holds its pages itself as long as its socket is open.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_within_one_frame_of_a_half() {
        let [mut first, mut second] = Umem::halves(2, 2_048).unwrap();
        let addresses: Vec<u64> = first.addresses().chain(second.addresses()).collect();
        assert_eq!(addresses, [0, 2_048, 4_096, 6_144]);
        let text = first.write(2_048, 3).unwrap();
        text.copy_from_slice(b"abc");
        assert_eq!(first.read(2_049, 2), Some(&b"bc"[..]));
        assert_eq!(first.read(2_047, 1), Some(&[0][..]));
        for (address, bytes) in [(2_047, 2), (0, 2_049), (4_096, 0), (u64::MAX, 1)] {
            assert_eq!(first.read(address, bytes), None, "{address} {bytes}");
        }
        second.write(6_144, 2_048).unwrap().fill(1);
        assert_eq!(second.read(2_048, 3), None, "it is the other half's");
        assert_eq!(first.read(2_048, 3), Some(&b"abc"[..]));
    }
}
