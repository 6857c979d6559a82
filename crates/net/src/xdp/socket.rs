//! A socket of one queue of an interface.
//!
//! Invariant: each frame of the memory is in one place: the fill ring or the kernel's hands, the receive ring, the transmit ring or the
//! completion ring, or the list of free ones. Half of the frames receive and half transmit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpStatistics,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

use super::ring::{Consumer, Producer};
use super::umem::Umem;

/// The settings of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of frames for receiving, and also of frames for transmitting. A power of two.
    pub frames: u32,
    /// Bytes of a frame: 2,048, or the size of a page. The kernel keeps 256 of them for itself when it receives. The rest limits the MTU.
    pub frame_bytes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            frames: 2_048,
            frame_bytes: 2_048,
        }
    }
}

/// A socket of one queue of an interface.
pub struct XdpSocket {
    fd: OwnedFd,
    umem: Umem,
    fill_ring: Producer<u64>,
    completion_ring: Consumer<u64>,
    receive_ring: Consumer<XdpDesc>,
    transmit_ring: Producer<XdpDesc>,
    /// The addresses of the free frames among those for transmitting.
    free_frames: Vec<u64>,
    /// Number of frames for transmitting.
    transmit_frames: usize,
}

impl XdpSocket {
    /// Opens the socket of a queue. It receives the frames that a program of the interface sends to it, and can transmit at once. The
    /// interface must be up.
    ///
    /// # Errors
    /// If the kernel, the driver or the rights of this process do not allow it (`CAP_NET_RAW`), or if the queue has a socket.
    pub fn bind(interface: u32, queue: u32, settings: Settings) -> io::Result<XdpSocket> {
        let (count, flags) = (settings.frames, SocketFlags::CLOEXEC);
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let umem = Umem::new(2 * count, settings.frame_bytes)?;
        sockopt::set_xdp_umem_reg(&fd, umem.registration())?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, count)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, count)?;
        sockopt::set_xdp_rx_ring_size(&fd, count)?;
        sockopt::set_xdp_tx_ring_size(&fd, count)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let borrowed = fd.as_fd();
        let (fill_offset, completion_offset) =
            (XDP_UMEM_PGOFF_FILL_RING, XDP_UMEM_PGOFF_COMPLETION_RING);
        let mut socket = XdpSocket {
            fill_ring: Producer::map(borrowed, fill_offset, offsets.fr, count)?,
            completion_ring: Consumer::map(borrowed, completion_offset, offsets.cr, count)?,
            receive_ring: Consumer::map(borrowed, XDP_PGOFF_RX_RING, offsets.rx, count)?,
            transmit_ring: Producer::map(borrowed, XDP_PGOFF_TX_RING, offsets.tx, count)?,
            free_frames: (count..2 * count)
                .map(|frame| umem.address(frame))
                .collect(),
            transmit_frames: count as usize,
            umem,
            fd,
        };
        for frame in 0..count {
            socket.fill_ring.push(socket.umem.address(frame));
        }
        socket.fill_ring.publish();
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&socket.fd, &SocketAddrXdp::new(flags, interface, queue))?;
        Ok(socket)
    }

    /// Calls `handle_frame` with each frame that has arrived, at most `frames_max` of them. Returns their number.
    pub fn receive(&mut self, frames_max: usize, mut handle_frame: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < frames_max
            && let Some(frame) = self.receive_ring.pop()
        {
            count += 1;
            if let Some(bytes) = self.umem.read(frame.addr, frame.len) {
                handle_frame(bytes);
            }
            // The ring has room for all frames that receive.
            self.fill_ring.push(frame.addr);
        }
        if count > 0 {
            self.fill_ring.publish();
        }
        if self.fill_ring.needs_wakeup() {
            // This call only wakes the kernel: received frames are in the ring, and the call itself returns none.
            let _ = recv(&self.fd, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
        count
    }

    /// Writes a frame of `bytes` bytes, which [`XdpSocket::flush`] transmits. `false` if there is no room for it.
    pub fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.reclaim();
        let Some(address) = self.free_frames.pop() else {
            return false;
        };
        let length = bytes as u32;
        let Some(frame) = self.umem.write(address, length) else {
            self.free_frames.push(address);
            return false;
        };
        fill(frame);
        // The ring has room for all frames that transmit.
        self.transmit_ring.push(XdpDesc {
            addr: address,
            len: length,
            options: XdpDescOptions::empty(),
        })
    }

    /// Lets the kernel transmit what was written.
    ///
    /// # Errors
    /// If the interface is down or gone. If the kernel only has no room now, the rest leaves with a later call.
    pub fn flush(&mut self) -> io::Result<()> {
        self.transmit_ring.publish();
        if self.is_idle() || !self.transmit_ring.needs_wakeup() {
            return Ok(());
        }
        match send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back the frames that were transmitted.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion_ring.pop() {
            self.free_frames.push(address);
        }
    }

    /// Whether all frames to transmit with are free.
    fn is_idle(&mut self) -> bool {
        self.reclaim();
        self.free_frames.len() == self.transmit_frames
    }

    /// Waits for a frame, at most `timeout`. Returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout))
            .is_ok_and(|ready| ready > 0)
    }

    /// The kernel's counts of dropped frames since the socket was made.
    ///
    /// # Errors
    /// None that is known.
    pub fn drop_statistics(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(&self.fd)?)
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
