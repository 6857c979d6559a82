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
    /// Frames that wait to be filled by the kernel or to be read, and as many that wait to be transmitted. A power of two.
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
    fill: Producer<u64>,
    completion: Consumer<u64>,
    received: Consumer<XdpDesc>,
    to_transmit: Producer<XdpDesc>,
    /// Frames to transmit with, and their number if none is under way.
    free: Vec<u64>,
    frames: usize,
}

impl XdpSocket {
    /// A socket of a queue. It receives what a program of the interface sends to it, and transmits at once. The interface must be up.
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
        let (fill, completion) = (XDP_UMEM_PGOFF_FILL_RING, XDP_UMEM_PGOFF_COMPLETION_RING);
        let mut socket = XdpSocket {
            fill: Producer::map(borrowed, fill, offsets.fr, count)?,
            completion: Consumer::map(borrowed, completion, offsets.cr, count)?,
            received: Consumer::map(borrowed, XDP_PGOFF_RX_RING, offsets.rx, count)?,
            to_transmit: Producer::map(borrowed, XDP_PGOFF_TX_RING, offsets.tx, count)?,
            free: (count..2 * count)
                .map(|frame| umem.address(frame))
                .collect(),
            frames: count as usize,
            umem,
            fd,
        };
        for frame in 0..count {
            socket.fill.push(socket.umem.address(frame));
        }
        socket.fill.publish();
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&socket.fd, &SocketAddrXdp::new(flags, interface, queue))?;
        Ok(socket)
    }

    /// Calls `packet` with each frame that has arrived, at most `most` of them. Returns their number.
    pub fn receive(&mut self, most: usize, mut packet: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < most
            && let Some(frame) = self.received.pop()
        {
            count += 1;
            if let Some(bytes) = self.umem.read(frame.addr, frame.len) {
                packet(bytes);
            }
            // The ring has room for all frames that receive.
            self.fill.push(frame.addr);
        }
        if count > 0 {
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            // What there is to receive is in the ring, and no data comes with this call.
            let _ = recv(&self.fd, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
        count
    }

    /// Writes a frame of `bytes` bytes, which [`XdpSocket::flush`] transmits. `false` if there is no room for it.
    pub fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        self.reclaim();
        let Some(address) = self.free.pop() else {
            return false;
        };
        let length = bytes as u32;
        let Some(out) = self.umem.write(address, length) else {
            self.free.push(address);
            return false;
        };
        fill(out);
        // The ring has room for all frames that transmit.
        self.to_transmit.push(XdpDesc {
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
        self.to_transmit.publish();
        if self.is_idle() || !self.to_transmit.needs_wakeup() {
            return Ok(());
        }
        match send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back the frames that were transmitted.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.pop() {
            self.free.push(address);
        }
    }

    /// Whether all frames to transmit with are free.
    fn is_idle(&mut self) -> bool {
        self.reclaim();
        self.free.len() == self.frames
    }

    /// Waits for a frame, at most `longest`. Returns whether there is one.
    pub fn wait(&self, longest: Duration) -> bool {
        let longest = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: longest.subsec_nanos().into(),
        };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&longest))
            .is_ok_and(|ready| ready > 0)
    }

    /// What the kernel has dropped, since the socket was made.
    ///
    /// # Errors
    /// None that is known.
    pub fn dropped(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(&self.fd)?)
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
